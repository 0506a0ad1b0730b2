"""The server's page, in its HTML and in a browser as wide as a phone."""

import json
import re
import threading

import chromium
import pytest
from browser import needs_browser
from checkpoints import M2M100
from serving import REQUEST, page

import tf_transformer as tt

pytest.importorskip("flask")

from werkzeug.serving import make_server

from tf_transformer.extensions.server.app import app
from tf_transformer.extensions.server.model import ServedModel


@pytest.fixture(scope="module")
def model(saved):
    return ServedModel(saved)


@pytest.fixture(scope="module")
def client(model):
    return app(model).test_client()


def test_the_page_loads_nothing_from_elsewhere(client):
    response = client.get("/")
    page = response.get_data(as_text=True)
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert 'data-name="name"' in page and "version 1" in page
    assert set(re.findall(r"https?://[^\s\"'`]*", page)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"\b(?:src|href)=\"(?!data:)", page)


def test_the_page_has_what_a_request_may_give(client, model, monkeypatch):
    fields = re.findall(
        r'<input id="(\w+)" type="number" min="(.*?)" max="(.*?)" step="(.*?)" value="(.*?)"', page(client)
    )
    assert [name for name, *_ in fields] == list(REQUEST)
    for name, *values, step, default in fields:
        option, engine = REQUEST[name], model.engine
        expected = [
            option.lowest,
            engine.max_values.get(name, option.highest),
            engine.options.get(name, option.default),
        ]
        assert [float(value) for value in (*values, default)] == expected
        assert step == {"int32": "1", "float32": "any"}[option.dtype]
    assert json.dumps(list(REQUEST)) in page(client)
    assert "const served = true, aligned = true, completes = false" in page(client)
    monkeypatch.setitem(model.signatures, "complete", model.signatures["translate"])
    assert "aligned = true, completes = true" in page(client)


CODES = {"ArrowDown": 40, "ArrowLeft": 37, "End": 35, "Enter": 13, "Tab": 9}
WAITING = "document.body.classList.contains('waiting')"
LISTED = "[...by('best').querySelectorAll('.text')].map(one => one.textContent.replace(' … not finished', ''))"


@pytest.fixture(scope="module", params=[True, False], ids=["completions", "none"])
def browsed(request, translator, saved, tmp_path_factory):
    """Opens the page in a browser as wide as a phone. Yields page, translator, and whether words can be clicked."""
    folder = saved
    if request.param:
        translator = tt.Translator.from_pretrained(M2M100, target_language="de", max_source_length=41)
        folder = tmp_path_factory.mktemp("completing") / "name" / "1"
        translator.save(folder, completions=True)
    server = make_server("127.0.0.1", 0, app(ServedModel(folder)), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opened = chromium.Page(f"http://127.0.0.1:{server.port}/", tmp_path_factory.mktemp("chromium"))
    opened.until("document.readyState == 'complete'")
    yield opened, translator, request.param
    opened.close()
    server.shutdown()


def translated(page, text):
    page.value(f"by('text').value = {json.dumps(text)}; by('form').requestSubmit()")
    page.until(f"!{WAITING}")
    assert page.value("by('error').hidden && by('status').textContent == ''")
    return page.value("by('whole').textContent")


def press(page, *keys):
    for key in keys:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=CODES[key], **text)
    page.until(f"!{WAITING}")


@pytest.mark.slow
@needs_browser
def test_the_page_translates_a_text_whole_and_lists_other_translations(browsed):
    page, translator, completing = browsed
    text = "The old woman opens the red door.  Two dogs.\n\n\tThe child sleeps in the house."
    sources = ["The old woman opens the red door.", "Two dogs.", "The child sleeps in the house."]
    assert translated(page, text) == tt.documents.translate(translator, text)
    assert page.value("document.documentElement.scrollWidth") <= 390
    best = translator.n_best(sources, 3)
    assert page.value(LISTED) == [one.text for one in best[0]]
    if completing:
        words = page.value("[...document.querySelectorAll('.pick')].map(one => one.textContent)")
        press(page, *["Tab"] * (1 + page.value("by('go').focus() ?? 0")), "End", "ArrowLeft")
        word = page.value("document.activeElement.textContent")
        assert word == words[-2]
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        buttons = [node["name"]["value"] for node in nodes if node["role"]["value"] == "button"]
        assert buttons == ["Translate", *words]
        last = best[2][0].text
        prefix = last[: last.rindex(word, 0, last.rindex(words[-1]))].rstrip()
        assert len(prefix.split()) > 1
    else:
        assert "tf-transformer export --completions" in page.value("by('how').textContent")
        assert page.value("document.querySelectorAll('.pick').length") == 3
        page.value("document.querySelectorAll('.pick')[2].focus()")
        prefix = ""
    press(page, "Enter")
    (others,) = translator.n_best(sources[2:], 3, prefixes=[prefix])
    expected = [one.text for one in others]
    assert page.value(LISTED) == (list(dict.fromkeys(expected)) if prefix else expected)
    title = "Best translations of sentence 3 of 3" + (f" that begin with “{prefix}”" if prefix else "")
    assert page.value("by('best-title').textContent") == title
    assert page.value("by('source').textContent") == sources[2]
    assert page.value("by('alignment').hidden") == completing
    assert page.value("document.activeElement.name") == "choice"
    press(page, "ArrowDown")
    chosen = page.value("[...by('best').querySelectorAll('input')].find(one => one.checked).value")
    now = f"{best[0][0].text}  {best[1][0].text}\n\n\t{expected[int(chosen)]}"
    assert page.value("by('whole').textContent") == now != tt.documents.translate(translator, text)
    assert page.value("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore:more tokens than the model reads")
def test_the_page_has_one_sentence_none_and_long_ones(browsed):
    page, translator, completing = browsed
    assert translated(page, "Two doors.") == translator("Two doors.")
    assert page.value("document.querySelectorAll('.pick').length > 0") == completing
    assert page.value("by('best-title').textContent + by('source').textContent") == "Best translations"
    long = "The door, " * 30 + "the end."
    assert translated(page, long) == tt.documents.translate(translator, long) != translator(long)
    assert page.value(LISTED) == [] and page.value("by('alignment').hidden")
    assert page.value("by('note').textContent").endswith("more than this model reads: it was translated in parts.")
    page.value("by('text').value = ' '; by('form').requestSubmit()")
    page.until(f"!{WAITING}")
    assert page.value("by('results').hidden && by('status').textContent").startswith("Nothing to translate")
