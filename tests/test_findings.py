"""findings/, which CI does not run: its table is complete, and each program has its header."""

import os
import re
import subprocess

import pages
import pytest

PROGRAMS = {path.stem: path for path in (pages.ROOT / "findings").glob("*.sh")}
FIELDS = ("Expected", "Seen", "Versions", "Source", "Met by")


def test_the_table_lists_each_finding_once():
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", pages.read("findings/README.md"), re.MULTILINE)) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_finding_has_its_header(name):
    text = PROGRAMS[name].read_text(encoding="utf-8")
    header = text.partition("set -euo pipefail\n")[0]
    assert re.findall(r"^# ([A-Z][\w ]*): ", header, re.MULTILINE) == list(FIELDS)
    assert PROGRAMS[name].stat().st_mode & 0o111, "not executable"
    assert "tf_transformer" not in text


def test_run_reports_what_changed(tmp_path):
    """Its exit status and its table, for a copy with programs that do nothing but leave a file. No file is left."""
    run = tmp_path / "run"
    run.write_bytes((pages.ROOT / "findings/run").read_bytes())
    run.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for name, program in {"fine": "mktemp", "other": "echo skipped: needs a GPU", "new": "echo seen; exit 3"}.items():
        (tmp_path / f"{name}.sh").write_text(f"#!/usr/bin/env bash\n{program}\n")
        (tmp_path / f"{name}.sh").chmod(0o755)

    def rows(*names):
        environment = {**os.environ, "TMPDIR": str(temporary)}
        done = subprocess.run([run, *names], capture_output=True, encoding="utf-8", env=environment)
        assert not list(temporary.iterdir())
        return done.returncode, [line.split()[:2] for line in done.stdout.splitlines()[1:]]

    assert rows("fine", "other.sh") == (0, [["fine", "holds"], ["other", "skipped"]])
    assert rows() == (1, [["fine", "holds"], ["new", "changed"], ["seen"], ["other", "skipped"]])
    assert rows("nothing") == (2, [])
