"""The README is short, its code runs, and its figures match those of the pages."""

import json
import re
from configparser import ConfigParser

import pages
import pytest

README = pages.read("README.md")
FEWER_STEPS = "tt.Recipe(steps=8, batch_tokens=2_048, warmup_steps=300)"
FEWER_PAIRS = 'write_corpus("text", train=900, dev=7, test=7)'
SMALLER = "tt.TransformerConfig(1, 32, 64, 2, vocab_size=500)"
QUICKER = {'write_corpus("text")': FEWER_PAIRS, 'tt.PRESETS["tiny"]': SMALLER, 'tt.RECIPES["tiny"]': FEWER_STEPS}
QUICKER['pretrained.save("savedmodels/en-de/1")'] = "pretrained.export()"  # test_matrix.py saves such a model


def test_it_is_short():
    assert len(README.split()) < 1_200


@pytest.mark.program
def test_its_python_runs_and_its_model_serves_its_request(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opus-mt-en-de").symlink_to(pages.ROOT / "tests/marian/trained")  # replaces the download
    assert len(pages.blocks("README.md")) == 3
    names = pages.run_blocks("README.md", QUICKER)
    assert names["classifier"].output_shape == (None, 3)
    assert names["pretrained"].metadata["max_length"] == 127

    pytest.importorskip("flask")
    from tf_transformer.extensions.server.app import app
    from tf_transformer.extensions.server.model import ServedModel

    body, host, path = re.search(r"^curl -d '(.*)' (http://localhost:8501)(\S+)$", README, re.MULTILINE).groups()
    model = ServedModel(tmp_path / "savedmodels/mine/1", "mine")
    response = app(model).test_client().post(path, data=body, base_url=host)
    (prediction,) = json.loads(response.data)["predictions"]
    assert prediction["translation"] == names["translator"](json.loads(body)["instances"])[0]


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_extras_on_pages_exist(path):
    config = ConfigParser()
    config.read(pages.ROOT / "setup.cfg")
    text = pages.read(path)
    for extras in re.findall(r'pip install (?:-e "?\.|"tf-transformer)\[([\w,]+)\]', text):
        assert set(extras.split(",")) <= set(config["options.extras_require"]), extras


@pytest.mark.parametrize(("heading", "page"), [("Results", "docs/results.md"), ("Speed", "docs/performance.md")])
def test_its_tables_have_the_figures_of_the_pages(heading, page):
    section, text = README.split(f"## {heading}\n")[1].split("\n## ")[0], pages.read(page)
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    figures = [figure for row in rows for figure in re.findall(r"(?<![\w.,])([\d.]+)\** *(?=\||, [A-Z])", row)]
    assert len(figures) >= 12
    page_figures = set(re.findall(r"(?<![\d.,])[\d.]+(?![\d,]|\.\d)", text.replace("**", "")))
    assert not set(figures) - page_figures, f"{page} has no {set(figures) - page_figures}"
