"""The project's pages in Markdown: their text, code blocks, links and anchors."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PATHS = sorted(
    path.relative_to(ROOT)
    for folder in ("docs", "savedmodels", "benchmarks", "examples", "findings")
    for path in (ROOT / folder).rglob("*.md")
)
PATHS += [Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(path, language="python"):
    """Returns the code blocks of a page in a language, from top to bottom."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(path), re.DOTALL | re.MULTILINE)


def run_blocks(path, quicker=None):
    """Runs a page's Python in the current directory, with some expressions replaced. Returns the names it defines."""
    program, names = "\n".join(blocks(path)), {"__name__": "__main__"}
    for slow, quick in (quicker or {}).items():
        assert slow in program, f"{path} has no {slow}"
        program = program.replace(slow, quick)
    exec(compile(program, str(path), "exec"), names)
    return names


SPAN, CALL = re.compile(r"`([^`]+)`"), re.compile(r"tf-transformer \w|python -m")
# A shell that prints which of our programs it would start, with which words, and finds no program to start.
DRY = r"""PATH=; exec 3>&1
record() { { printf '%s\037' "$@"; printf '\036'; } >&3; }
tf-transformer() { record tf-transformer "$@"; }; python() { record python "$@"; }; python3() { record python "$@"; }
others='. cp curl docker git grep head hf jupyter make mv node paste pip pytest sacrebleu sh tail tensorboard'
for other in $others; do eval "$other() { :; }"; done
"""


def calls(script):
    """Returns the words of each call of Python and `tf-transformer` in shell lines."""
    script = re.sub(r"[\w./-]+/bin/(?=pip|python)", "", script)
    script = re.sub(r"(?<=\s)< ?\w\S*", "< /dev/null", script)
    shell = subprocess.run([shutil.which("bash"), "-c", DRY + script], capture_output=True, encoding="utf-8")
    assert not shell.stderr, shell.stderr
    return [words.split("\037")[:-1] for words in shell.stdout.split("\036")[:-1]]


def commands(path):
    """Returns the calls on a page: those in blocks, and those in text, which end in ... since they may be parts."""
    spans = [span.replace("\n", " ") for span in SPAN.findall(FENCED.sub("", read(path))) if CALL.search(span)]
    return calls("\n".join(blocks(path, "sh"))) + [[*words, "..."] for words in calls("\n".join(spans))]


def links(path):
    """Returns the links of a page to files of the repository: (path, anchor)."""
    text = FENCED.sub("", read(path))
    targets = re.findall(r"\]\(([^)\s:]+)\)", text) + re.findall(r'src="([^":]+)"', text)
    return [tuple(link.partition("#")[::2]) for link in targets]


def anchors(path):
    """Returns a page's anchors: its headings, as GitHub and Python-Markdown name them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
