"""Tests the page that translates in a browser: its tokenizer with SentencePiece's library, its outputs with ours."""

import functools
import http.server
import json
import random
import shutil
import subprocess
import threading

import chromium
import hostile
import numpy as np
import pytest
from checkpoints import M2M100, MARIAN
from programs import ROOT

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.engines.litert_client import opened
from tf_transformer.extensions.interop.families.m2m100.family import M2M100Checkpoint
from tf_transformer.extensions.interop.families.m2m100.tokenizer import M2M100Tokenizer
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.extensions.interop.families.pieces import ADDED, archive_of

BROWSER = ROOT / "savedmodels/clients/browser"
# Reads a tokenizer's files from a directory, and texts and lists of ids from standard input. Prints ids and texts.
SPELL = """
import fs from "fs"
const {tokenizerOf, isOfTokenizer} = await import(process.argv[1]), folder = process.argv[2]
const {texts, outputs} = JSON.parse(fs.readFileSync(0, "utf-8")), names = fs.readdirSync(folder).filter(isOfTokenizer)
const tokenizer = tokenizerOf(Object.fromEntries(names.map(name => [name, fs.readFileSync(`${folder}/${name}`)])))
const [ids, spelled] = [texts.map(text => tokenizer.encode(text)), outputs.map(ids => tokenizer.decode(ids))]
console.log(JSON.stringify({ids, spelled}))
"""
SHOWN = "[...document.querySelectorAll('#best .text')].map(one => one.firstChild?.data ?? '')"
OVERTAKEN = """(async () => {
  const [text, n] = ["text", "n"].map(id => document.getElementById(id))
  for (text.value of ["The old woman opens the red door. ".repeat(9), "Two dogs.", "A man. He sleeps."]) {
    n.dispatchEvent(new Event("change"))
    await new Promise(done => setTimeout(done, 1))
  }
})()"""
REPEATED = " ".join(letter * count for letter in "abcdefghijklmnopqrstuvwxyz" for count in (3, 5))
CODES = [">>de<< The red door.", ">>xx<<>>de<< The", "__de__ The", "<2de> The <2fr>door<2fr>s", "<2fr>x", "<mask>"]
CODES += ["x <2fr>x  a+\u3000__mic__ 東"]


def hostile_texts(count):
    draw = random.Random(5)
    texts = [*hostile.TEXTS, *CODES, REPEATED, *(kind(draw) for kind in hostile.KINDS for _ in range(count))]
    return [text for text in map(litert_client._text, texts) if len(text) < 2_000]


@pytest.fixture(scope="module")
def sentences():
    return [text for pair in tt.toy_corpus.corpus(train=600)["train"] for text in pair]


def tokenizer_of(kind, sentences):
    if kind == "m2m100":
        return M2M100Checkpoint(M2M100).tokenizer()
    if kind in ("added", "added earlier"):
        added = {"<2fr>": False, "<2fr>x": True, "東": False, "a+": True, "__mic__": True}
        contents = tt.vocabularies.with_tokens(tt.Translator.from_pretrained(M2M100), added).tokenizer.contents
        return M2M100Tokenizer(archive_of({**contents, ADDED: added if kind == "added" else list(added)}))
    if kind == "marian":
        return checkpoint_in(MARIAN).tokenizer()
    kind, normalization = kind.split()
    tokens = {"user_defined_symbols": ["<2de>", "<2fr>", "<2fr>x"], "control_tokens": ["NP"]}
    return tt.Tokenizer.train_from_iterator(sentences, 420, kind, normalization=normalization, **tokens)


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node")
@pytest.mark.parametrize(
    "kind", ["bpe nmt_nfkc", "unigram nmt_nfkc", "bpe identity", "marian", "m2m100", "added", "added earlier"]
)
def test_its_tokenizer_is_sentencepiece(kind, sentences, tmp_path):
    tokenizer = tokenizer_of(kind, sentences)
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    if kind == "added earlier":  # tokens.json had only the tokens' ids
        tokens = json.loads(tokenizer.vocabularies[ADDED])
        (tmp_path / ADDED).write_text(json.dumps({token: id for token, (id,) in tokens.items()}))
    ours = (litert_client._Pieces if tokenizer.vocabularies else litert_client._SentencePiece)(tmp_path)
    texts = [*hostile_texts(31), *sentences[:97]]
    outputs = np.random.default_rng(3).integers(0, tokenizer.vocab_size, (197, 7)).tolist()
    command = ["node", "--input-type=module", "-e", SPELL, (BROWSER / "translator.js").as_uri(), str(tmp_path)]
    arguments = json.dumps({"texts": texts, "outputs": outputs}).encode()
    done = subprocess.run(command, input=arguments, capture_output=True)
    assert not done.returncode, done.stderr.decode()
    outputs_of_page = json.loads(done.stdout)
    assert outputs_of_page["ids"] == [ours.encode(text) for text in texts]
    assert outputs_of_page["ids"] == getattr(tokenizer, "source", tokenizer).encode(texts)
    assert outputs_of_page["spelled"] == [ours.decode(ids) for ids in outputs]


@pytest.fixture(scope="module", params=["translator", "m2m100"])
def page(request, translator, tmp_path_factory):
    """The page of an export in a browser, after its server has stopped, and the export's directory."""
    pytest.importorskip("tf2onnx")
    if not (chromium.PROGRAM and shutil.which("npm")):
        pytest.skip("needs Chromium and npm")
    if request.param == "m2m100":
        translator = tt.Translator.from_pretrained(M2M100, target_language="de", max_source_length=41)
    folder = tmp_path_factory.mktemp("browser")
    translator.save(folder / "onnx" / "1", format="onnx")
    build = ["node", str(BROWSER / "build.mjs"), str(folder / "onnx"), str(folder / "web")]
    subprocess.run(build, check=True)
    failed = subprocess.run(build, capture_output=True)
    assert failed.returncode == 2 and failed.stderr.decode() == (
        f"error: expected a new directory, but {folder / 'web'} exists\n"
    )
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=folder / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = chromium.Page(f"http://127.0.0.1:{server.server_port}/", tmp_path_factory.mktemp("chromium"))
        browser.until(
            "document.getElementById('loading')?.hidden && document.getElementById('best').ariaBusy == 'false'"
        )
        server.shutdown()
    yield browser, folder / "onnx"
    browser.close()


def outputs_of(page, text, **chosen):
    """Types a text, selects values, and returns the outputs of the page."""
    for name, value in {**chosen, "text": text}.items():
        event = "input" if name == "text" else "change"
        element = f"document.getElementById('{name}')"
        page.value(f"{element}.value = {json.dumps(value)}; {element}.dispatchEvent(new Event('{event}'))")
    page.until("document.getElementById('best').ariaBusy == 'false'")
    assert page.value("document.getElementById('error').textContent") == ""
    return page.value(SHOWN)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:more tokens than the model reads")
def test_it_translates_like_the_client_without_a_server(page, sentences):
    page, folder = page
    client = opened(folder)
    for text in [*sentences[:31:2], *hostile_texts(3)]:
        expected = client.n_best(text, 1)[0]
        (output,) = outputs_of(page, text)
        assert output.removesuffix(" … (not finished)") == expected.text, text
        assert output.endswith(" … (not finished)") == (bool(expected.length) and not expected.finished)
    outputs = [text.removesuffix(" … (not finished)") for text in outputs_of(page, "Two doors.", n=3)]
    assert outputs == [best.text for best in client.n_best("Two doors.", 3)]
    outputs_of(page, "", n=1)
    page.value(OVERTAKEN)  # types two texts while the worker translates another
    page.until("document.getElementById('best').ariaBusy == 'false'")
    (last,) = page.value(SHOWN)
    assert last.removesuffix(" … (not finished)") == client("A man. He sleeps.")
    assert page.value("document.getElementById('note').textContent").startswith("This looks like several sentences.")
    if client.metadata.get("languages"):
        chosen = {"source_language": "de", "target_language": "en"}
        (output,) = outputs_of(page, "Zwei Hunde.", **chosen)
        assert output.removesuffix(" … (not finished)") == client("Zwei Hunde.", **chosen)
        assert page.value("document.getElementById('target_language').selectedOptions[0].text") == "English"
    assert page.value("document.documentElement.scrollWidth") <= 390
