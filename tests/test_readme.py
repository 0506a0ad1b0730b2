"""The README's Python, as it stands there, from top to bottom."""

import ast
import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.program
def test_the_python_blocks_run(tmp_path, monkeypatch):
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opus-mt-en-de").symlink_to(ROOT / "tests/marian/trained")  # in its place: there is no network
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 9
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["classifier"](names["source"]).shape == (names["source"].shape[0], 3)
    for name in ("mine", "en-de", "tuned", "adapted"):
        assert (tmp_path / f"savedmodels/{name}/1/saved_model.pb").exists()
    learns = [weight.path for weight in names["start"].model.trainable_weights]
    assert len(learns) == 2 * 2 * 3 and all("lora" in path for path in learns)  # of two projections of three layers
    sentences = ["The women do not sing.", "He is tired."]
    assert names["adapted"](sentences) == names["start"](sentences)
    assert (tmp_path / "attention.png").exists() and (tmp_path / "attention.html").exists()


def test_what_is_said_to_be_run_is_installed_by_what_is_said():
    """Programs are in the clone, not in the package: an extra for them is installed from there."""
    for section in README.split("\n## "):
        if "python -m trainers." in section and section.startswith(("Two commands", "Parsing")):
            assert 'pip install "tf-transformer' not in section
            assert re.search(r'pip install -e (\.|"\.\[)', section)


def test_the_file_tree_is_true():
    tree = README.split("## File tree")[1]
    named = set(re.findall(r"^  ([\w/]+\.py) ", tree, re.MULTILINE))
    package = ROOT / "tf_transformer"
    there = {str(path.relative_to(package)) for path in package.rglob("*.py")} - {"version.py"}
    assert named == {name for name in there if not name.endswith("__init__.py")}


def defines(tree, name):
    """Whether a module's syntax tree defines a class, function or method."""
    for part in name.split("."):
        tree = next((node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part), None)
    return tree is not None


def test_the_paper_table_points_at_what_exists():
    table = README.split("## The paper, section by section")[1].split("## Design")[0]
    places = re.findall(r"\[`([\w.]+)`\]\(tf_transformer/([\w/]+\.py)\)", table)
    assert len(places) == table.count("(tf_transformer/")
    for name, path in places:
        tree = ast.parse((ROOT / "tf_transformer" / path).read_text(encoding="utf-8"))
        assert defines(tree, name), f"{path} has no {name}"
    for name in re.findall(r"`(test_\w+\.py)`", table):
        assert (ROOT / "tests" / name).exists(), name
    sections = re.findall(r"^\| ([\d.]+) \|", table, re.MULTILINE)
    wanted = ["3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "5.4", "6.1"]
    assert set(wanted) <= set(sections)
