"""The project's pages in Markdown: their text, code blocks, links and anchors."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PATHS = sorted(
    path.relative_to(ROOT)
    for folder in ("docs", "savedmodels", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.md")
)
PATHS += [Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(path, language="python"):
    """The code blocks of a page in a language, from top to bottom."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(path), re.DOTALL | re.MULTILINE)


def run_blocks(path, quicker=None):
    """Run a page's Python from top to bottom in the current folder, with some expressions replaced by quicker ones.

    Returns:
        the names that it defines.
    """
    program, names = "\n".join(blocks(path)), {"__name__": "__main__"}
    for slow, quick in (quicker or {}).items():
        assert slow in program, f"{path} has no {slow}"
        program = program.replace(slow, quick)
    exec(compile(program, str(path), "exec"), names)
    return names


def links(path):
    """The links of a page to files of the repository: (folder's path, anchor)."""
    text = FENCED.sub("", read(path))
    found = re.findall(r"\]\(([^)\s:]+)\)", text) + re.findall(r'src="([^":]+)"', text)
    return [tuple(link.partition("#")[::2]) for link in found]


def anchors(path):
    """What a link can lead to inside a page: its headings, as GitHub and Python-Markdown name them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
