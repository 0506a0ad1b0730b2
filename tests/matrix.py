"""The families and the doors of test_matrix.py. A family is a model to save, a door a way from an export and texts to
answers."""

import contextlib
import importlib
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import random_model
from programs import ROOT, without_the_package
from served import Served

import tf_transformer as tt
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.interop.families.m2m100.languages import M2M100, NLLB
from trainers.command import run_program

TRAINED = {family: ROOT / "tests" / family / "trained" for family in ("marian", "m2m100")}
LIMITS = {"beam_size": 2, "extra_length": 7, "max_source_length": 13}


# Families: a function of a small translator and an empty folder; its name begins with that of its registered family.


def transformer(translator, folder):
    return translator.replace(**LIMITS)


def transformer_learned(translator, folder):
    """Learned positions, as many as an output has places; weights whose choices 8 bits do not change."""
    sizes = {"positions": "learned", "max_length": 23}
    return tt.Translator(random_model(350, 37, 2.0, sizes), translator.tokenizer, **LIMITS)


def transformer_ensemble(translator, folder):
    both = [random_model(350, seed, 1.0, {}) for seed in (2, 9)]
    return tt.Translator(tt.Ensemble(both), translator.tokenizer, **LIMITS)


def transformer_parser(translator, folder):
    from test_parsing import small_parser

    parser = small_parser()
    return tt.Parser(parser.translator.replace(**LIMITS))


def marian(translator, folder):
    """With swish, as OPUS-MT's models have it."""
    return tt.Translator.from_pretrained(TRAINED["marian"], **LIMITS)


def marian_separate(translator, folder):
    """With a vocabulary for sources and another for targets."""
    runpy.run_path(str(ROOT / "tests/marian/separate.py"))["split"](folder)
    return tt.Translator.from_pretrained(folder, **LIMITS)


def m2m100(translator, folder):
    return tt.Translator.from_pretrained(TRAINED["m2m100"], target_language="de", **LIMITS)


def m2m100_nllb(translator, folder):
    """The weights of the M2M100, in a checkpoint of NLLB-200: other ids, and 202 languages."""
    import sentencepiece
    from safetensors.numpy import load_file, save_file

    source = TRAINED["m2m100"]
    folder.mkdir()
    for name in ("sentencepiece.bpe.model", "generation_config.json"):
        shutil.copy(source / name, folder)
    engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    ids = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    known = {code: len(ids) + place for place, code in enumerate(M2M100.split())}
    rows = [0, 1, 2, 3, *(ids[engine.id_to_piece(id)] for id in range(3, engine.vocab_size()))]
    rows += [known[{"eng_Latn": "en", "deu_Latn": "de"}.get(code, "zu")] for code in NLLB.split()]
    rows.append(3)  # the mask
    tensors = load_file(source / "model.safetensors")
    (table,) = (name for name in tensors if name.endswith("shared.weight"))
    save_file(tensors | {table: np.ascontiguousarray(tensors[table][rows])}, folder / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": len(rows)}))
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tt.Translator.from_pretrained(folder, **LIMITS)


FAMILIES = [transformer, transformer_learned, transformer_ensemble, transformer_parser]
FAMILIES += [marian, marian_separate, m2m100, m2m100_nllb]
FAMILIES = {family.__name__: family for family in FAMILIES}
OWN = ["The red door.", "", "Two dogs.", "   "]
MARIAN = [">>deu<< The red door.", "", ">>deu<< Two dogs.", "   "]
TEXTS = dict.fromkeys(FAMILIES, OWN) | dict.fromkeys(("marian", "marian_separate"), MARIAN)
TEXTS["transformer_parser"] = ["The old woman sleeps .", "", "Dogs sleep .", "   "]


# Formats: what cannot be saved in one, and the line that says so.

ONE_MODEL = ("ctranslate2", "transformers", "litert", "onnx")
CANNOT_BE_SAVED = {("transformer_ensemble", name): "expected one model" for name in ONE_MODEL}
CANNOT_BE_SAVED |= {("transformer_parser", name): "translator: expected a TextModel, got Parser(" for name in ONE_MODEL}
CANNOT_BE_SAVED["transformer_learned", "transformers"] = "positions: expected sinusoidal"


# Doors: functions of a folder and texts that give the answers, or raise.


class Refused(Exception):
    """A program has said in a line on standard error why it does not answer."""


def one_string(outputs):
    """The only output of strings of a signature: its answers."""
    (found,) = (value for value in outputs.values() if value.dtype in (tf.string, np.dtype(object)))
    return [text.decode() for text in np.asarray(found).tolist()]


def saved_model_load(path, texts):
    """Every signature, by its name and as a function of the object: all of them tell of the same answers."""
    loaded = tf.saved_model.load(str(path))
    asked = tf.constant(texts)
    answers = one_string(loaded.signatures["serving_default"](text=asked))
    assert one_string(loaded.serving_default(asked)) == answers
    if "parse" in loaded.signatures:
        assert one_string(loaded.signatures["parse"](text=asked)) == answers
        return answers
    options = defaults_of(loaded)
    found = {name: loaded.signatures[name](text=asked, **options) for name in ("translate", "translate_details")}
    assert first_of(found["translate"]["translations"]) == answers
    assert first_of(loaded.translate(asked)["translations"]) == answers
    tokens = found["translate_details"]["tokens"][:, 0]
    assert one_string(loaded.signatures["detokenize"](tokens=tokens)) == answers
    languages = {name: value for name, value in options.items() if name.endswith("_language")}
    scored = loaded.signatures["score"](source=asked, target=tf.constant(answers), **languages)
    assert np.isfinite(scored["log_prob"]).all()
    if "complete" in loaded.signatures:
        begin = ["Das", "", "Die", ""]
        found["complete"] = loaded.signatures["complete"](text=asked, prefix=tf.constant(begin), **options)
        completed = first_of(found["complete"]["translations"])
        assert [answer[:3] for answer in completed] == begin
        assert first_of(loaded.complete(asked, tf.constant([""]))["translations"]) == answers
    lengths = loaded.signatures["tokenize"](text=asked)["length"]
    assert (lengths.numpy() == found["translate"]["source_length"].numpy()).all()
    return answers


def first_of(translations):
    return [text.decode() for text in translations[:, 0].numpy()]


def defaults_of(loaded):
    """The inputs of `translate` beside the text, with what the model itself says of their defaults."""
    specs = loaded.signatures["translate"].structured_input_signature[1]
    names = sorted(specs.keys() - {"text"})
    said = dict(zip(names, loaded.model_info(tf.constant(names))["value"].numpy(), strict=True))
    return {
        name: tf.constant([value]) if specs[name].dtype == tf.string else tf.cast([float(value)], specs[name].dtype)
        for name, value in said.items()
    }


def keras_layer(path, texts):
    return one_string(keras.layers.TFSMLayer(str(path), call_endpoint="serving_default")(tf.constant(texts)))


def cpp_loader(path, texts):
    served = Served(path)
    try:
        return one_string(served({"text": texts}))
    finally:
        served.close()


def load(path, texts):
    """A text of one sentence is also a document."""
    engine = tt.load(path)
    answers = engine(texts)
    if engine.translates:
        documents = [text if text.strip() else "" for text in engine.document(texts)]
        assert documents == answers
    return answers


def from_pretrained(path, texts):
    """The Keras model, built again from the weights."""
    translator = tt.Translator.from_pretrained(path)
    return (tt.Parser(translator) if translator.tokenizer.controls else translator)(texts)


def beam(path, texts):
    pytest.importorskip("apache_beam")
    from test_beam import run

    found, _ = run(list(enumerate(texts)), tt.beam.Translate(path))
    return [answer.text for _, answer in sorted(found, key=lambda pair: pair[0])]


def program(name, argv):
    """Run a program in this process as its command does; standard output and error are collected."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    main = importlib.import_module(
        f"trainers.{name}" if name != "check" else "tf_transformer.extensions.conformance.check"
    ).main
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run_program(lambda: main([str(each) for each in argv]))
        except SystemExit as end:
            out.flush()
            if end.code:
                said = err.getvalue().strip().splitlines() or out.buffer.getvalue().decode().splitlines()
                raise Refused(said[-1] if said else "") from end
    out.flush()
    return out.buffer.getvalue().decode()


def written(path, texts):
    """A file of the texts, a line each, beside the export."""
    file = path.parent / "texts"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def lines(text):
    """Those that a line feed ends, whatever else random weights write."""
    return text.removesuffix("\n").split("\n")


def translate(path, texts):
    return lines(program("translate", [path, written(path, texts)]))


def evaluate(path, texts):
    file, output = written(path, texts), path.parent / "output"
    output.unlink(missing_ok=True)
    files = ["--source", file, "--reference", file, "--output", output]
    assert "BLEU" in program("evaluate", ["--model", path, *files, "--samples", 3])
    return lines(output.read_text("utf-8"))


def check(path, texts):
    """Its answers are findings, all of them good."""
    said = program("check", [path]).splitlines()
    assert said and all(line.startswith("ok ") for line in said), [line for line in said if line[:3] != "ok "]
    return None


def serve(path, texts):
    """LibreTranslate's API. A text without words stays as it is."""
    pytest.importorskip("flask")
    from trainers.serve import app

    model = tt.load(path)
    if not model.translates:
        with pytest.raises(tt.BadInput, match="serve: expected a translator, got a parser"):
            app(model)
        return None
    pair = {name: model.facts.get(name, code) for name, code in (("source_language", "en"), ("target_language", "de"))}
    answer = app(model, pair).test_client().post("/translate", json={"q": texts})
    return [text if text.strip() else "" for text in answer.get_json()["translatedText"]]


def playground(path):
    pytest.importorskip("flask")
    from savedmodels.playground.model import ServedModel

    return ServedModel(path, "name")


def rest(path, texts):
    """The playground by the client for REST."""
    from savedmodels.clients.rest import Client, translated
    from savedmodels.playground.rest import app

    asked, client = app(playground(path)).test_client(), Client(name="name")

    def ask(what, body=None):
        where = f"/v1/models/name{what}"
        answer = asked.post(where, data=json.dumps(body)) if body else asked.get(where)
        assert answer.status_code == 200, answer.get_json()
        return answer.get_json()

    client._ask = ask
    found = client.predict(texts)
    answers = [next(value for value in row.values() if isinstance(value, str)) for row in found]
    with contextlib.suppress(LookupError):  # a parser has no options
        lines = [line.split("\t") for line in translated(client, texts, client.options(), 0, 1)]
        assert [line[2] for line in lines] == answers
    return answers


def grpc(path, texts):
    """The playground by the client for gRPC."""
    pytest.importorskip("tensorflow_serving")
    import grpc

    from savedmodels.clients.grpc_client import Client
    from savedmodels.playground import rpc

    server, port = rpc.serve(playground(path), 0)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return one_string(Client(channel, "name").predict("serving_default", {"text": np.array(texts, object)}))
    finally:
        server.stop(None)


def client_alone(path, texts):
    """The file alone, where this package cannot be imported."""
    folder = path.parent / "alone"
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        shutil.copy(ROOT / "tf_transformer/extensions/interop/engines/litert_client.py", folder),
        path,
    ]
    given = "".join(f"{text}\n" for text in texts).encode()
    done = subprocess.run(command, input=given, capture_output=True, env=without_the_package(folder))
    if done.returncode:
        raise Refused(done.stderr.decode().strip().splitlines()[-1])
    return lines(done.stdout.decode())


def ctranslate2(path, texts):
    """The engine, with the pieces and codes that docs/guides/ctranslate2.md has; greedy, since its length penalty is
    another."""
    engine = pytest.importorskip("ctranslate2").Translator(str(path), intra_threads=1)
    import sentencepiece

    names = [("tokenizer.model",) * 2, ("source.spm", "target.spm"), ("sentencepiece.bpe.model",) * 2]
    (pair,) = (pair for pair in names if (path / pair[0]).is_file())
    source, target = (sentencepiece.SentencePieceProcessor(model_file=str(path / name)) for name in pair)
    first, begin = [], []
    if "bpe" in pair[0]:
        vocabulary = (path / "shared_vocabulary.json").read_text("utf-8")
        first, begin = (["__en__"], ["__de__"]) if "__en__" in vocabulary else (["eng_Latn"], ["deu_Latn"])
    answers = []
    for text in texts:
        code, _, rest = text.partition(" ") if text.startswith(">>") else ("", "", text)
        pieces = [*first, *[code] * bool(code), *source.encode(rest, out_type=str)]
        options = {"beam_size": 1, "max_decoding_length": len(pieces) + LIMITS["extra_length"]}
        (result,) = engine.translate_batch([pieces], target_prefix=[begin], min_decoding_length=0, **options)
        text = target.decode(result.hypotheses[0][len(begin) :]).replace(" \u2047 ", "")  # an unknown symbol's text
        answers.append(text if rest.strip() else "")
    return answers


def transformers(path, texts):
    """Hugging Face's library; greedy, since its length penalty is another."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from by_transformers import asked

    languages = None
    if "NllbTokenizer" in (said := (path / "tokenizer_config.json").read_text("utf-8")):
        languages = ["eng_Latn", "deu_Latn", "deu_Latn"]
    elif "M2M100Tokenizer" in said:
        languages = ["en", "de", "__de__"]
    _, answers, _ = asked(path, texts, 1, SEARCH_OPTIONS["extra_length"].default, languages)
    wordless = re.compile(r"(>>.*?<<)?\s*")
    return ["" if wordless.fullmatch(text) else answer for text, answer in zip(texts, answers, strict=True)]


class Door(NamedTuple):
    """A way from a folder to answers.

    Attributes:
        answers: a function of the folder and texts.
        takes: formats, by name.
        ours: whether its refusal of other formats is a line of ours; else it is what another library raises.
    """

    answers: Callable[[Path, list[str]], list[str] | None]
    takes: tuple[str, ...]
    ours: bool = True


OPENED = ("savedmodel", "litert", "onnx")
LOADED = (*OPENED, "transformers")  # a checkpoint is loaded as any other
DOORS = {
    "saved_model.load": Door(saved_model_load, ("savedmodel",), ours=False),
    "TFSMLayer": Door(keras_layer, ("savedmodel",), ours=False),
    "C++ loader": Door(cpp_loader, ("savedmodel",), ours=False),
    "tt.load": Door(load, LOADED),
    "from_pretrained": Door(from_pretrained, ("savedmodel", "transformers")),
    "Beam": Door(beam, LOADED),
    "translate": Door(translate, LOADED),
    "evaluate": Door(evaluate, LOADED),
    "check": Door(check, OPENED),
    "serve": Door(serve, LOADED),
    "REST": Door(rest, OPENED),
    "gRPC": Door(grpc, OPENED),
    "client alone": Door(client_alone, ("litert", "onnx")),
    "CTranslate2": Door(ctranslate2, ("ctranslate2",), ours=False),
    "transformers": Door(transformers, ("transformers",), ours=False),
}
