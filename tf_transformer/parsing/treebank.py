"""Bracketed trees: reading them, their normal form, and as a line of symbols and back (Vinyals et al. 2015).

A tree is an `nltk.Tree` (`pip install "tf-transformer[parsing]"`). In the normal form, the convention for the Wall
Street Journal's, its root is TOP, function labels (NP-SBJ, PP=2) are cut, traces and other null elements (-NONE-) are
removed with whatever they leave empty, every word stands alone under its tag, and brackets in it are -LRB- and -RRB-.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tf_transformer.config import BadInput

if TYPE_CHECKING:
    from nltk import Tree

ROOT = "TOP"
ROOTS = ("", "TOP", "ROOT", "S1")  # as treebanks name it
NO_TAG = "XX"  # what stands for a word where tags are left out (section 2.1 of Vinyals et al. 2015)
NULL = "-NONE-"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def read_trees(paths) -> "list[Tree]":
    """The trees of a file or of several, in the normal form: a tree a line, or over several lines.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: a file is not UTF-8, or something in it is no tree; the message says where.
    """
    return [tree for path in (paths if isinstance(paths, list | tuple) else [paths]) for tree in _read(Path(path))]


def _read(path: Path) -> "Iterator[Tree]":
    if not path.is_file():
        raise FileNotFoundError(f"expected a file of bracketed trees, found none at {path}")
    depth, first = 0, 1
    lines: list[str] = []
    with open(path, encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, 1):
                if not lines and not line.strip():
                    continue
                first = first if lines else number
                lines.append(line)
                depth += line.count("(") - line.count(")")
                if depth <= 0:
                    tree = read_tree("".join(lines))
                    lines, depth = [], 0
                    if len(tree):
                        yield tree
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from error
        except (ValueError, RecursionError) as error:
            what = " ".join(str(error).split())
            raise BadInput(f"{path}, line {first:,}: expected a bracketed tree, got something else: {what}") from error
    if lines:
        raise BadInput(
            f"{path}, line {first:,}: expected a bracketed tree, got one without its last {depth:,} brackets"
        )


def wsj_files(folder, sections) -> list[Path]:
    """The .mrg files of some sections of the Penn Treebank's Wall Street Journal, e.g. range(2, 22) to train on.

    Args:
        folder: where wsj_0201.mrg and so on lie, in folders of sections or not.
        sections: numbers from 0 to 24.
    """
    wanted = {f"{section:02}" for section in sections}
    files = sorted(path for path in Path(folder).rglob("wsj_*.mrg") if path.name[4:6] in wanted)
    missing = wanted - {path.name[4:6] for path in files}
    if missing:
        raise FileNotFoundError(
            f"{folder}: expected wsj_NNNN.mrg of the sections {min(wanted)} to {max(wanted)}, "
            f"found none of {', '.join(sorted(missing))}"
        )
    return files


def read_tree(text) -> "Tree":
    """The tree of its text, in the normal form.

    Raises:
        ValueError: it is none.
    """
    from nltk import Tree

    return normalised(Tree.fromstring(text))


def as_line(tree: "Tree") -> str:
    """The other way round, in one line."""
    return tree.pformat(margin=sys.maxsize)


def drawn(tree: "Tree") -> str:
    """A tree drawn with characters, in several lines."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).text(unicodelines=True)


def picture(tree: "Tree") -> str:
    """A tree drawn as SVG."""
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return TreePrettyPrinter(tree).svg()


def normalised(tree: "Tree") -> "Tree":
    """A tree in the normal form: see the top of this file; of a tree without words, TOP alone."""
    from nltk import Tree

    def parts(node) -> list[Tree]:
        if isinstance(node, str):
            return [Tree(NO_TAG, [escaped(BRACKETS.get(node, node))])]
        if node.label() == NULL:
            return []
        if all(isinstance(child, str) for child in node):
            return [Tree(node.label() or NO_TAG, [escaped(BRACKETS.get(word, word))]) for word in node]
        children = [part for child in node for part in parts(child)]
        if not children or node.label() in ROOTS:
            return children
        return [Tree(base_label(node.label()), children)]

    return Tree(ROOT, parts(tree))


def base_label(label: str) -> str:
    """A constituent's label without its functions and indices: NP of NP-SBJ-1 and of NP=2."""
    return label if label.startswith("-") else re.split("[-=]", label)[0] or label


def words_of(tree: "Tree") -> list[str]:
    """A tree's words as they are written in a text: brackets are brackets, not -LRB- and -RRB-."""
    return [BRACKETS.get(word, word) for word in tree.leaves()]


def escaped(word: str) -> str:
    """A word as it may stand in a tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearised(tree: "Tree", tags: bool = True) -> list[str]:
    """A tree in the normal form as symbols: "(NP", ")NP", and for each word its tag, or XX. The root is left out.

    (TOP (S (NP (PRP He)) (VP (VBD slept)))) becomes (S (NP PRP )NP (VP VBD )VP )S.
    """

    def symbols(node) -> list[str]:
        if isinstance(node[0], str):
            return [node.label() if tags else NO_TAG]
        inner = [symbol for child in node for symbol in symbols(child)]
        return [f"({node.label()}", *inner, f"){node.label()}"]

    return [symbol for child in tree for symbol in symbols(child)]


def is_well_formed(symbols: list[str], count: int) -> bool:
    """Whether symbols are a tree over so many words as they stand, without empty constituents."""
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
    """The tree of a line of symbols over its words, in the normal form; the other way round from `linearised`.

    What is not well-formed is repaired, from left to right: a closing bracket closes the innermost open constituent of
    its label and all inside it, and is left out if there is none; words more than there are are left out; at the end
    all that is open is closed, words that are still to come are tagged XX and put under the root, and constituents
    without words are removed.
    """
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
            stack[-1].append(Tree(symbol, [escaped(word)]))
    root.extend(Tree(NO_TAG, [escaped(word)]) for word in left)
    return normalised(root) if not is_well_formed(symbols, len(words)) else root
