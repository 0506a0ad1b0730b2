"""Reads bracketed trees, normalizes them, and converts them to lines of tokens and back (Vinyals et al. 2015).

A tree is an `nltk.Tree` (`pip install "tf-transformer[parsing]"`). The normal form is the usual one for the Wall Street
Journal: the root is TOP, function labels are cut (NP-SBJ, PP=2), traces and other null elements (-NONE-) are removed
together with every constituent that this empties, and each word has a separate tag.

Reading accepts the Penn Treebank's escapes: -LCB- for {, and a backslash before a slash or a star. Writing uses
`ESCAPES`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_transformer.config import BadInput
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.lines import lines_of
from tf_transformer.utils.values import Natural, checked, shown

if TYPE_CHECKING:
    from nltk import Tree

ROOT = "TOP"
ROOTS = ("", "TOP", "ROOT", "S1")  # names that treebanks give the root
NO_TAG = "XX"  # every word's tag in trees without tags (section 2.1 of Vinyals et al. 2015)
NULL = "-NONE-"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
# Rewrites a word for a tree, in regular expressions that Python and TensorFlow read alike. A backslash before a slash
# or a star would be the treebank's escape, and one before a bracket would make it a part of the word for nltk.
ESCAPES = ((r"\(", "-LRB-"), (r"\)", "-RRB-"), (r"\\([/*])", r"\\\\\1"), (r"\\$", r"\\ "))


def read_trees(paths: Any) -> "list[Tree]":
    """Reads normalized trees from one or several files, plain or .gz. A tree may span lines.

    Raises:
        FileNotFoundError: If a file is missing.
        BadInput: If a file is not UTF-8 or contains something else than trees.
    """
    is_one = isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable)
    return [tree for path in ([paths] if is_one else paths) for tree in _read(user_path(path))]


def _read(path: Path) -> "Iterator[Tree]":
    if not path.is_file():
        raise FileNotFoundError(f"expected a file of bracketed trees, found none at {path}")
    import_extra("nltk", "parsing", "a tree")
    lines, depth, first = list[str](), 0, 1
    try:
        for number, line in enumerate((line.decode() for line in lines_of(path)), 1):
            if lines or line.strip():
                first = first if lines else number
                lines.append(line)
                depth += line.count("(") - line.count(")")
            if lines and depth <= 0:
                tree, lines, depth = _tree_of("\n".join(lines)), [], 0
                if len(tree):
                    yield tree
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from error
    except BadInput:  # a damaged .gz
        raise
    except (ValueError, RecursionError) as error:
        message = f"expected a bracketed tree, got something else: {_one_line(error)}"
        raise BadInput(f"{path}, line {first:,}: {message}") from error
    if lines:
        reason = f"expected a bracketed tree, got one without its last {depth:,} brackets"
        raise BadInput(f"{path}, line {first:,}: {reason}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]  # nltk's messages have several lines


def wsj_files(folder: str | os.PathLike[str], sections: Iterable[int]) -> list[Path]:
    """Returns the files wsj_0201.mrg and so on of some sections of the Wall Street Journal, also in subdirectories.

    Raises:
        FileNotFoundError: If a section has no files.
    """
    names = {f"{section:02}" for section in sections}
    files = sorted(path for path in user_path(folder).rglob("wsj_*.mrg") if path.name[4:6] in names)
    if missing := names - {path.name[4:6] for path in files}:
        expected = f"expected wsj_NNNN.mrg of the sections {min(names)} to {max(names)}"
        raise FileNotFoundError(f"{folder}: {expected}, found none of {', '.join(sorted(missing))}")
    return files


def read_tree(text: str) -> "Tree":
    """Reads a normalized tree from a text. A word may be in brackets: (PRP (She)).

    Raises:
        BadInput: If the text is not a tree or has a constituent without words, or if nltk is not installed.
    """
    import_extra("nltk", "parsing", "a tree")
    try:
        return _tree_of(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"expected a bracketed tree, got {shown(text)}: {_one_line(error)}") from error


def _tree_of(text: str) -> "Tree":
    from nltk import Tree

    def unescaped(word: str) -> str:
        return re.sub(r"\\([/*])", r"\1", word)

    # nltk 3.10 would take a bracket after a word's last backslash for a part of the word.
    tree = Tree.fromstring(re.sub(r"\\(?=[()])", r"\\ ", text), read_leaf=unescaped)
    for node in tree.subtrees():
        empty = [child for child in node if isinstance(child, Tree) and not len(child)]
        if not empty:
            continue
        if len(node) > 1 or node.label() in ROOTS or not empty[0].label():
            raise ValueError(f"no word in ({empty[0].label()})")
        node[0] = unescaped(empty[0].label())  # (PRP (She))
    return normalized(tree)


def as_line(tree: "Tree") -> str:
    """Writes a tree in one line. Inverse of `read_tree`."""
    parts = []
    # Loops, here and below: a comprehension takes another frame of Python's stack at each level of a deep tree.
    for part in tree:
        parts.append(escaped(part) if isinstance(part, str) else as_line(part))
    return f"({tree.label()} {' '.join(parts)})"


def drawn(tree: "Tree") -> str:
    """Draws a tree with characters, in several lines."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).text(unicodelines=True)


def picture(tree: "Tree") -> str:
    """Draws a tree as SVG."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).svg()


def normalized(tree: "Tree") -> "Tree":
    """Returns a tree in the normal form (see the module's docstring). A tree without words becomes a bare TOP."""
    from nltk import Tree

    def parts(node: Any) -> list[Tree]:
        if isinstance(node, str):
            return [Tree(NO_TAG, [with_brackets(node)])]
        if node.label() == NULL:
            return []
        if all(isinstance(child, str) for child in node):
            return [Tree(node.label() or NO_TAG, [with_brackets(word)]) for word in node]
        children = []
        for child in node:
            children += parts(child)
        if not children or node.label() in ROOTS:
            return children
        return [Tree(base_label(node.label()), children)]

    return Tree(ROOT, parts(tree))


def base_label(label: str) -> str:
    """Returns a label without functions and indices: NP for NP-SBJ-1 and NP=2."""
    return label if label.startswith("-") else re.split("[-=]", label)[0] or label


def words_of(tree: "Tree") -> list[str]:
    """Returns a tree's words as a text has them: brackets, not -LRB- and -RRB-."""
    return [with_brackets(word) for word in tree.leaves()]


def with_brackets(word: str) -> str:
    """Replaces -LRB- and the other names in `BRACKETS` by brackets."""
    return re.sub("|".join(BRACKETS), lambda name: BRACKETS[name[0]], word)


def escaped(word: str) -> str:
    """Returns a word as a tree has it. Raises `BadInput` if it is empty or contains whitespace."""
    if not re.fullmatch(r"\S+", word):
        raise BadInput(f"expected words of a tree without whitespace, got {shown(word)}")
    for pattern, replacement in ESCAPES:
        word = re.sub(pattern, replacement, word)
    return word


@checked
def linearised(tree: "Tree", tags: bool = True) -> list[str]:
    """Converts a normalized tree to tokens: "(NP", ")NP", and for each word its tag, or XX. Omits the root.

    (TOP (S (NP (PRP He)) (VP (VBD slept)))) becomes (S (NP PRP )NP (VP VBD )VP )S.
    """

    def tokens_of(node: Any) -> list[str]:
        if isinstance(node[0], str):
            return [node.label() if tags else NO_TAG]
        inner = []
        for child in node:
            inner += tokens_of(child)
        return [f"({node.label()}", *inner, f"){node.label()}"]

    return [token for child in tree for token in tokens_of(child)]


@checked
def is_well_formed(tokens: list[str], count: Natural) -> bool:
    """Returns whether tokens form a tree over `count` words, without repair and without empty constituents."""
    stack, words, previous = [], 0, ""
    for token in tokens:
        if token[0] == "(":
            stack.append(token[1:])
        elif token[0] == ")":
            if not stack or stack.pop() != token[1:] or previous[0] == "(":
                return False
        else:
            words += 1
        previous = token
    return not stack and words == count


def to_tree(tokens: list[str], words: list[str]) -> "Tree":
    """Converts tokens and their words to a normalized tree. Inverse of `linearised`.

    Repairs ill-formed lines from left to right. A closing bracket closes the innermost open constituent with its label
    and everything inside. Brackets that close nothing and tags without a word are dropped. At the end, open
    constituents are closed, missing words are put under the root with the tag XX, and empty constituents are removed.
    """
    import_extra("nltk", "parsing", "a tree")
    from nltk import Tree

    root = Tree(ROOT, [])
    stack, remaining = [root], iter(words)
    for token in tokens:
        if token[0] == "(":
            stack.append(Tree(token[1:], []))
            stack[-2].append(stack[-1])
        elif token[0] == ")":
            labels = [node.label() for node in stack[1:]]
            if token[1:] in labels:
                del stack[len(labels) - labels[::-1].index(token[1:]) :]
        elif (word := next(remaining, None)) is not None:
            stack[-1].append(Tree(token, [with_brackets(word)]))
    root.extend(Tree(NO_TAG, [with_brackets(word)]) for word in remaining)
    return normalized(root) if not is_well_formed(tokens, len(words)) else root
