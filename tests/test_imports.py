"""Every module of the package can be imported."""

import importlib.util
import subprocess
import sys

from programs import ROOT

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name)
"""


def test_every_module_can_be_imported():
    paths = sorted((ROOT / "tf_transformer").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    if not importlib.util.find_spec("apache_beam"):
        names = [name for name in names if not name.startswith("tf_transformer.beam.")]
    command = [sys.executable, "-c", PROGRAM, *names]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.stdout.split() == names, process.stderr
