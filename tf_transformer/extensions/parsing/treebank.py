"""Reads bracketed trees, brings them to a normal form, and converts them to lines of symbols and back (Vinyals et al.
2015).

A tree is an `nltk.Tree` (`pip install "tf-transformer[parsing]"`). The normal form is the usual one for the Wall Street
Journal. The root is TOP. Function labels (NP-SBJ, PP=2) are cut. Traces and other null elements (-NONE-) are removed,
with every constituent that this empties. Every word stands alone under its tag, as it is in a text.

Trees may be deep. Functions that go down them use loops: a comprehension takes another frame of Python's stack.

In a line of brackets a word may be written otherwise. What the Penn Treebank writes is read: -LCB- for {, and a
backslash before a slash or a star. What is written here is `ESCAPES`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_transformer.config import BadInput
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import lines_of, user_path
from tf_transformer.utils.values import Natural, checked, shown

if TYPE_CHECKING:
    from nltk import Tree

ROOT = "TOP"
ROOTS = ("", "TOP", "ROOT", "S1")  # treebanks' names of the root
NO_TAG = "XX"  # what stands for a word where tags are left out (section 2.1 of Vinyals et al. 2015)
NULL = "-NONE-"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
# How a word is written in a tree, in regular expressions that Python and TensorFlow read alike. A backslash before a
# slash or a star would be the treebank's; one before a bracket would make it a part of the word for nltk.
ESCAPES = ((r"\(", "-LRB-"), (r"\)", "-RRB-"), (r"\\([/*])", r"\\\\\1"), (r"\\$", r"\\ "))


def read_trees(paths: Any) -> "list[Tree]":
    """Read the trees of one or several files, plain or .gz, in the normal form; a tree may span lines.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: a file is not UTF-8, or a part of it is no tree; the message says where.
    """
    one = isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable)
    return [tree for path in ([paths] if one else paths) for tree in _read(user_path(path))]


def _read(path: Path) -> "Iterator[Tree]":
    if not path.is_file():
        raise FileNotFoundError(f"expected a file of bracketed trees, found none at {path}")
    import_extra("nltk", "parsing", "a tree")
    depth, first = 0, 1
    lines: list[str] = []
    try:
        for number, line in enumerate((line.decode() for line in lines_of(path)), 1):
            if not lines and not line.strip():
                continue
            first = first if lines else number
            lines.append(line)
            depth += line.count("(") - line.count(")")
            if depth <= 0:
                tree = _tree_of("\n".join(lines))
                lines, depth = [], 0
                if len(tree):
                    yield tree
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from error
    except BadInput:
        raise  # a damaged .gz
    except (ValueError, RecursionError) as error:
        what = f"expected a bracketed tree, got something else: {_first_words(error)}"
        raise BadInput(f"{path}, line {first:,}: {what}") from error
    if lines:
        raise BadInput(
            f"{path}, line {first:,}: expected a bracketed tree, got one without its last {depth:,} brackets"
        )


def _first_words(error: Exception) -> str:
    """An error's message in one line; nltk's has several."""
    return " ".join(str(error).split())[:200]


def wsj_files(folder: str | os.PathLike[str], sections: Iterable[int]) -> list[Path]:
    """The .mrg files of some sections of the Penn Treebank's Wall Street Journal, e.g. range(2, 22) to train on.

    Args:
        folder: where wsj_0201.mrg and so on lie, in folders of sections or not.
        sections: numbers from 0 to 24.
    """
    wanted = {f"{section:02}" for section in sections}
    files = sorted(path for path in user_path(folder).rglob("wsj_*.mrg") if path.name[4:6] in wanted)
    missing = wanted - {path.name[4:6] for path in files}
    if missing:
        raise FileNotFoundError(
            f"{folder}: expected wsj_NNNN.mrg of the sections {min(wanted)} to {max(wanted)}, "
            f"found none of {', '.join(sorted(missing))}"
        )
    return files


def read_tree(text: str) -> "Tree":
    """Read a tree from a text, in the normal form. A word may stand in brackets of its own, as in (PRP (She)).

    Raises:
        BadInput: the text is not a tree, or has a constituent without words; or nltk is not installed.
    """
    import_extra("nltk", "parsing", "a tree")
    try:
        return _tree_of(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"expected a bracketed tree, got {shown(text)}: {_first_words(error)}") from error


def _tree_of(text: str) -> "Tree":
    from nltk import Tree

    apart = re.sub(r"\\(?=[()])", r"\\ ", text)  # a backslash at the end of a word: nltk 3.10 would read on
    tree = Tree.fromstring(apart, read_leaf=_without_escapes)
    for node in tree.subtrees():
        empty = [child for child in node if isinstance(child, Tree) and not len(child)]
        if not empty:
            continue
        if len(node) > 1 or node.label() in ROOTS or not empty[0].label():
            raise ValueError(f"no word in ({empty[0].label()})")
        node[0] = _without_escapes(empty[0].label())  # a word in brackets of its own
    return normalised(tree)


def as_line(tree: "Tree") -> str:
    """A tree as one line of text; the inverse of `read_tree`.

    Raises:
        BadInput: a word is empty, or has white space.
    """
    parts = []
    for part in tree:
        parts.append(escaped(part) if isinstance(part, str) else as_line(part))
    return f"({tree.label()} {' '.join(parts)})"


def drawn(tree: "Tree") -> str:
    """A tree drawn with characters, in several lines."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).text(unicodelines=True)


def picture(tree: "Tree") -> str:
    """A tree drawn as SVG."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).svg()


def normalised(tree: "Tree") -> "Tree":
    """A tree in the normal form (see the top of this file). A tree without words becomes TOP alone."""
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
    """A constituent's label without its functions and indices: NP of NP-SBJ-1 and of NP=2."""
    return label if label.startswith("-") else re.split("[-=]", label)[0] or label


def words_of(tree: "Tree") -> list[str]:
    """A tree's words as they are written in a text: brackets are brackets, not -LRB- and -RRB-."""
    return [with_brackets(word) for word in tree.leaves()]


def with_brackets(word: str) -> str:
    """A word in which -LRB- is a bracket, and so are the other names in `BRACKETS`."""
    return re.sub("|".join(BRACKETS), lambda name: BRACKETS[name[0]], word)


def escaped(word: str) -> str:
    """A word as it is written in a tree.

    Raises:
        BadInput: it is empty, or has white space.
    """
    if not re.fullmatch(r"\S+", word):
        raise BadInput(f"expected words of a tree without white space, got {shown(word)}")
    for pattern, replacement in ESCAPES:
        word = re.sub(pattern, replacement, word)
    return word


def _without_escapes(word: str) -> str:
    """A word as it is written in a tree, without the backslashes before slashes and stars."""
    return re.sub(r"\\([/*])", r"\1", word)


@checked
def linearised(tree: "Tree", tags: bool = True) -> list[str]:
    """A tree in the normal form as symbols: "(NP", ")NP", and a tag or XX for each word. The root is left out.

    (TOP (S (NP (PRP He)) (VP (VBD slept)))) becomes (S (NP PRP )NP (VP VBD )VP )S.
    """

    def symbols(node: Any) -> list[str]:
        if isinstance(node[0], str):
            return [node.label() if tags else NO_TAG]
        inner = []
        for child in node:
            inner += symbols(child)
        return [f"({node.label()}", *inner, f"){node.label()}"]

    return [symbol for child in tree for symbol in symbols(child)]


@checked
def is_well_formed(symbols: list[str], count: Natural) -> bool:
    """Whether symbols, unchanged, are a tree over `count` words, without empty constituents."""
    stack, words, before = [], 0, ""
    for symbol in symbols:
        if symbol[0] == "(":
            stack.append(symbol[1:])
        elif symbol[0] == ")":
            if not stack or stack.pop() != symbol[1:] or before[0] == "(":
                return False
        else:
            words += 1
        before = symbol
    return not stack and words == count


def to_tree(symbols: list[str], words: list[str]) -> "Tree":
    """The tree of a line of symbols over its words, in the normal form; the inverse of `linearised`.

    Ill-formed lines are repaired from left to right. A closing bracket closes the innermost open constituent with its
    label and everything inside; without one, the bracket is dropped. Symbols of extra words are dropped. At the end,
    open constituents are closed, missing words are put under the root with the tag XX, and constituents without words
    are removed.
    """
    import_extra("nltk", "parsing", "a tree")
    from nltk import Tree

    root = Tree(ROOT, [])
    stack, left = [root], iter(words)
    for symbol in symbols:
        if symbol[0] == "(":
            stack.append(Tree(symbol[1:], []))
            stack[-2].append(stack[-1])
        elif symbol[0] == ")":
            labels = [node.label() for node in stack[1:]]
            if symbol[1:] in labels:
                del stack[len(labels) - labels[::-1].index(symbol[1:]) :]
        elif (word := next(left, None)) is not None:
            stack[-1].append(Tree(symbol, [with_brackets(word)]))
    root.extend(Tree(NO_TAG, [with_brackets(word)]) for word in left)
    return normalised(root) if not is_well_formed(symbols, len(words)) else root
