"""Hooks of mkdocs: pages that lie outside docs/, and links as the repository has them.

In the repository a link leads to a file. On the site it leads to the page made of that file; or, where the file is a
module of the package and the link's text names a class or function in it, to that in the API reference.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {  # a file of the repository: the page that it becomes
    "savedmodels/README.md": "reference/contract.md",
    "benchmarks/README.md": "reference/benchmarks.md",
    "examples/multi30k/README.md": "guides/small-corpora.md",
    "examples/notebooks/README.md": "tutorials/notebooks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
LINK = re.compile(r"(?<!!)\[([^\[\]\n]+(?:\n[^\[\]\n]+)*)\]\(([^)\s:]+)\)")  # its text may continue on the next line


def on_files(files, config):
    for path, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    sources = {page: path for path, page in PAGES.items() if page != "index.md"}
    own = page.file.src_uri
    folder = posixpath.dirname(sources.get(own, f"docs/{own}"))

    def link(match):
        text, (target, _, anchor) = match[1], match[2].partition("#")
        if not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        where = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if where:
            relative = posixpath.relpath(where, posixpath.dirname(own) or ".")
            return f"[{text}]({relative}{'#' * bool(anchor)}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # mkdocs then says that it leads nowhere
        name = re.fullmatch(r"`(\w+)(\.\w+)?`", text)
        if name and name[2] != ".py" and path.startswith("tf_transformer/"):  # a method is on its class's entry
            return f"[{text}][{path.removesuffix('.py').replace('/', '.')}.{name[1]}]"
        return text if text.startswith("`") else f"{text} (`{path}`)"

    fenced = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(fenced))
