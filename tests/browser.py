"""A page in a browser, for tests that are slow."""

import shutil
import subprocess

import pytest

needs_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium")


def shown(html, folder, script=""):
    """A page's elements after its own programs and then `script` have run, as HTML."""
    path = folder / "page.html"
    path.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={folder}/browser", "--dump-dom"]
    return subprocess.run([*command, path.as_uri()], capture_output=True, text=True, check=True, timeout=120).stdout
