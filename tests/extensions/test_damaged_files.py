"""Files of every kind, damaged at random 300 times, are read or raise a one-line error."""

import json
import os
import subprocess
import sys

import damaged
import pytest

COUNT = 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", damaged.KINDS)
def test_damaged_files_are_read_or_rejected(kind, tmp_path):
    """None crashes the process, takes a minute, or takes 2 GiB."""
    for name, package in (("Marian's pickle", "torch"), ("Parquet", "pyarrow")):
        if kind.startswith(name):
            pytest.importorskip(package)
    command = [sys.executable, damaged.__file__, kind, str(COUNT), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(damaged.HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60 * COUNT)
    seed = (tmp_path / "seed").read_text() if (tmp_path / "seed").exists() else "none"
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    result = json.loads(done.stdout.splitlines()[-1])
    print(kind, result)
    assert not result["wrong"] and sum(result["counts"].values()) == COUNT
    assert result["peak_mib"] < 2048
    assert result["counts"].get("BadInput", 0) > COUNT / 10 or kind in damaged.FORGIVING
