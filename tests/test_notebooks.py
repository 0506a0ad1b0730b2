"""The notebooks of examples/ run from top to bottom, with the kinds of output that they store."""

import pages
import pytest

PATHS = sorted((pages.ROOT / "examples/notebooks").glob("*.ipynb"))


def read(path):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(path, 4)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_outputs_are_kept(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))  # run once, in order
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert "At the end you know" in read(path).cells[0].source


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(pages.ROOT), prepend=":")
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    stored = [cell for cell in read(path).cells if cell.cell_type == "code"]
    for new, old in zip([cell for cell in notebook.cells if cell.cell_type == "code"], stored, strict=True):
        kinds = [sorted(kind for output in cell.outputs for kind in output.get("data", {})) for cell in (new, old)]
        assert kinds[0] == kinds[1], new.source  # figures remain figures
