"""Families and entry points of test_matrix.py. A family is a model to save. An entry point converts an export and texts
to outputs."""

import contextlib
import importlib
import io
import itertools
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
from conftest import noisy_model, random_model
from programs import ROOT, without_the_package
from served import Served

import tf_transformer as tt
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.interop.families.m2m100.family import M2M100, NLLB
from trainers.command import run_program

TRAINED = {family: ROOT / "tests" / family / "trained" for family in ("marian", "m2m100")}
LIMITS = {"beam_size": 2, "extra_length": 7, "max_source_length": 13}


# Families: functions of a small translator and an empty directory. A name begins with that of the registered family.


def transformer(translator, folder):
    """8 bits do not change the outputs of two layers with these weights."""
    return tt.Translator(noisy_model(num_layers=2), translator.tokenizer, **LIMITS)


def transformer_learned(translator, folder):
    """It has learned positions for the longest output. 8 bits do not change its outputs."""
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
    """It has swish, like OPUS-MT's models."""
    return tt.Translator.from_pretrained(TRAINED["marian"], **LIMITS)


def marian_separate(translator, folder):
    """It has separate vocabularies of source and target."""
    runpy.run_path(str(ROOT / "tests/marian/separate.py"))["split"](folder)
    return tt.Translator.from_pretrained(folder, **LIMITS)


def ssru(translator, folder):
    """It has a recurrent decoder, and Marian's native files."""
    from test_ssru import write

    write(folder)
    return tt.Translator.from_pretrained(folder, **LIMITS)


def m2m100(translator, folder):
    return tt.Translator.from_pretrained(TRAINED["m2m100"], target_language="de", **LIMITS)


def m2m100_nllb(translator, folder):
    """Converts the M2M100 to a checkpoint of NLLB-200, with other ids and 202 languages."""
    import sentencepiece
    from safetensors.numpy import load_file, save_file

    source = TRAINED["m2m100"]
    folder.mkdir()
    for name in ("sentencepiece.bpe.model", "generation_config.json"):
        shutil.copy(source / name, folder)
    engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    ids = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    by_code = {code: len(ids) + index for index, code in enumerate(M2M100.split())}
    rows = [0, 1, 2, 3, *(ids[engine.id_to_piece(id)] for id in range(3, engine.vocab_size()))]
    rows += [by_code[{"eng_Latn": "en", "deu_Latn": "de"}.get(code, "zu")] for code in NLLB.split()]
    rows.append(3)  # the mask
    tensors = load_file(source / "model.safetensors")
    (table,) = (name for name in tensors if name.endswith("shared.weight"))
    save_file(tensors | {table: np.ascontiguousarray(tensors[table][rows])}, folder / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": len(rows)}))
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tt.Translator.from_pretrained(folder, **LIMITS)


def m2m100_extended(translator, folder):
    """It has tokens and a language that were added here."""
    model = tt.vocabularies.with_language(m2m100(translator, folder), "mic", like="de", texts=["犬"])
    return tt.vocabularies.with_tokens(model, ["<term>", "</term>"])


FAMILIES = [transformer, transformer_learned, transformer_ensemble, transformer_parser]
FAMILIES += [marian, marian_separate, ssru, m2m100, m2m100_nllb, m2m100_extended]
FAMILIES = {family.__name__: family for family in FAMILIES}
OWN = ["The red door.", "", "Two dogs.", "   "]
MARIAN = [">>deu<< The red door.", "", ">>deu<< Two dogs.", "   "]
TEXTS = dict.fromkeys(FAMILIES, OWN) | dict.fromkeys(("marian", "marian_separate"), MARIAN)
TEXTS["m2m100_extended"] = ["The <term>red</term> door.", "", "Two 犬 dogs.", "   "]
TEXTS["transformer_parser"] = ["The old woman sleeps .", "", "Dogs sleep .", "   "]


# The error of a family that a format cannot hold.

ONE_MODEL = ("ctranslate2", "argos", "transformers", "litert", "onnx")
CANNOT_BE_SAVED = {("transformer_ensemble", name): "expected one model" for name in ONE_MODEL}
CANNOT_BE_SAVED |= {
    ("transformer_parser", name): "translator: expected a TensorTranslator, got Parser(" for name in ONE_MODEL
}
CANNOT_BE_SAVED |= {("ssru", name): "expected a layer that computes what" for name in ("ctranslate2", "transformers")}
SEVERAL_TOKENIZERS = ("marian", "marian_separate", "ssru", "m2m100", "m2m100_nllb", "m2m100_extended")
CANNOT_BE_SAVED |= {(name, "argos"): "argos: expected a model of one pair" for name in SEVERAL_TOKENIZERS}
CANNOT_BE_SAVED["transformer_learned", "transformers"] = "positions: expected sinusoidal"


# Entry points: functions of an export and texts that return the outputs, or raise.


class ProgramFailed(Exception):
    """A program failed, with this line on standard error."""


def one_string(outputs):
    """Returns the texts of a signature that has one output of strings."""
    (texts,) = (value for value in outputs.values() if value.dtype in (tf.string, np.dtype(object)))
    return [text.decode() for text in np.asarray(texts).tolist()]


def saved_model_load(path, texts):
    """Every signature agrees, by name and as a function of the object."""
    loaded = tf.saved_model.load(str(path))
    text = tf.constant(texts)
    outputs = one_string(loaded.signatures["serving_default"](text=text))
    assert one_string(loaded.serving_default(text)) == outputs
    if "parse" in loaded.signatures:
        assert one_string(loaded.signatures["parse"](text=text)) == outputs
        return outputs
    options = defaults_of(loaded)
    results = {name: loaded.signatures[name](text=text, **options) for name in ("translate", "translate_details")}
    assert one_string({"": results["translate"]["translations"][:, 0]}) == outputs
    assert one_string({"": loaded.translate(text)["translations"][:, 0]}) == outputs
    tokens = results["translate_details"]["tokens"][:, 0]
    assert one_string(loaded.signatures["detokenize"](tokens=tokens)) == outputs
    languages = {name: value for name, value in options.items() if name.endswith("_language")}
    scored = loaded.signatures["score"](source=text, target=tf.constant(outputs), **languages)
    assert np.isfinite(scored["log_prob"]).all()
    if "complete" in loaded.signatures:
        begin = ["Das", "", "Die", ""]
        results["complete"] = loaded.signatures["complete"](text=text, prefix=tf.constant(begin), **options)
        completed = one_string({"": results["complete"]["translations"][:, 0]})
        assert [output[:3] for output in completed] == begin
        assert one_string({"": loaded.complete(text, tf.constant([""]))["translations"][:, 0]}) == outputs
    lengths = loaded.signatures["tokenize"](text=text)["length"]
    assert (lengths.numpy() == results["translate"]["source_length"].numpy()).all()
    return outputs


def defaults_of(loaded):
    """Returns the optional inputs of `translate` with the defaults that the model's `model_info` returns."""
    specs = loaded.signatures["translate"].structured_input_signature[1]
    names = sorted(specs.keys() - {"text"})
    defaults = dict(zip(names, loaded.model_info(tf.constant(names))["value"].numpy(), strict=True))
    return {
        name: tf.constant([value]) if specs[name].dtype == tf.string else tf.cast([float(value)], specs[name].dtype)
        for name, value in defaults.items()
    }


def keras_layer(path, texts):
    return one_string(keras.layers.TFSMLayer(str(path), call_endpoint="serving_default")(tf.constant(texts)))


def cpp_loader(path, texts):
    served = Served(path, rewritten=True)
    try:
        return one_string(served({"text": texts}))
    finally:
        served.close()


def load(path, texts):
    """A text of one sentence is also a document."""
    engine = tt.load(path)
    outputs = engine(texts)
    if engine.translates:
        documents = [text if text.strip() else "" for text in tt.documents.translate(engine, texts)]
        assert documents == outputs
    return outputs


def from_pretrained(path, texts):
    """Rebuilds the Keras model from its weights."""
    translator = tt.Translator.from_pretrained(path)
    return (tt.Parser(translator) if translator.tokenizer.control_tokens else translator)(texts)


def beam(path, texts):
    pytest.importorskip("apache_beam")
    from test_beam import run

    if texts == TEXTS["transformer_parser"]:
        with pytest.raises(tt.BadInput, match="expected a translator's export, got one of another task"):
            run([], tt.beam.Translate(path))
        return None
    outputs, _ = run(list(enumerate(texts)), tt.beam.Translate(path))
    return [output.text for _, output in sorted(outputs, key=lambda pair: pair[0])]


def program(name, argv):
    """Runs a program in this process as its command does. Returns its standard output."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    package = "trainers" if name != "check" else "tf_transformer.extensions.conformance"
    main = importlib.import_module(f"{package}.{name}").main
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run_program(lambda: main([str(argument) for argument in argv]))
        except SystemExit as end:
            out.flush()
            if end.code:
                printed = err.getvalue().strip().splitlines() or out.buffer.getvalue().decode().splitlines()
                raise ProgramFailed(printed[-1] if printed else "") from end
    out.flush()
    return out.buffer.getvalue().decode()


def written(path, texts):
    """Writes the texts as lines of a file next to the export."""
    file = path.parent / "texts"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def lines(text):
    """Splits at line feeds only: random weights write other line ends."""
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
    """Prints findings, all of them good."""
    findings = program("check", [path]).splitlines()
    assert findings and all(line.startswith("ok ") for line in findings), findings
    return None


def serve(path, texts):
    """LibreTranslate's API, which returns a text without words unchanged."""
    pytest.importorskip("flask")
    from trainers.serve import app

    model = tt.load(path)
    if not model.translates:
        with pytest.raises(tt.BadInput, match="serve: expected a translator, got an engine of another task"):
            app(model)
        return None
    # Without options, as `tf-transformer serve` of an export with a card.
    client = app(model).test_client()
    codes = [one["code"] for one in client.get("/languages").get_json()]
    assert {"en", "de"} <= set(codes) or {"eng_Latn", "deu_Latn"} <= set(codes)
    output = client.post("/translate", json={"q": texts, "source": "en", "target": "de"})
    assert output.status_code == 200, output.get_json()
    return [text if text.strip() else "" for text in output.get_json()["translatedText"]]


def served_model(path):
    pytest.importorskip("flask")
    from tf_transformer.extensions.server.model import ServedModel

    if not tt.load(path).translates:
        assert ServedModel(path).engine is None and "parse" in ServedModel(path).signatures
        return None
    model = ServedModel(path, "name")
    return model if model.signatures else None


def rest(path, texts):
    """Uses the REST client with the server."""
    from savedmodels.clients.rest import Client, translated
    from tf_transformer.extensions.server.app import app

    if not (model := served_model(path)):
        return None
    server, client = app(model).test_client(), Client(name="name")

    def ask(suffix, body=None):
        url = f"/v1/models/name{suffix}"
        output = server.post(url, data=json.dumps(body)) if body else server.get(url)
        assert output.status_code == 200, output.get_json()
        return output.get_json()

    client._ask = ask
    rows = client.predict(texts)
    outputs = [next(value for value in row.values() if isinstance(value, str)) for row in rows]
    lines = [line.split("\t") for line in translated(client, texts, client.options(), 0, 1)]
    assert [line[2] for line in lines] == outputs
    return outputs


def grpc(path, texts):
    """Uses the gRPC client with a local server."""
    pytest.importorskip("tensorflow_serving")
    import grpc
    import grpc_server

    from savedmodels.clients.grpc_client import Client

    if not (model := served_model(path)):
        return None
    server, port = grpc_server.serve(model)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return one_string(
                Client(channel, "name", timeout=99).predict("serving_default", {"text": np.array(texts, object)})
            )
    finally:
        server.stop(None)


def client_file(path, texts):
    """Runs a copy of the client's file where the package cannot be imported."""
    folder = path.parent / "client"
    folder.mkdir(exist_ok=True)
    file = shutil.copy(ROOT / "tf_transformer/extensions/interop/engines/litert_client.py", folder)
    options = {"input": "".join(f"{text}\n" for text in texts).encode(), "env": without_the_package(folder)}
    done = subprocess.run([sys.executable, file, path], capture_output=True, **options)
    if done.returncode:
        raise ProgramFailed(done.stderr.decode().strip().splitlines()[-1])
    return lines(done.stdout.decode())


def ctranslate2(path, texts):
    """CTranslate2's own translator, as in docs/guides/ctranslate2.md. Greedy, since its length penalty differs."""
    engine = pytest.importorskip("ctranslate2").Translator(str(path), intra_threads=1)
    import sentencepiece

    names = [("tokenizer.model",) * 2, ("source.spm", "target.spm"), ("sentencepiece.bpe.model",) * 2]
    (pair,) = (pair for pair in names if (path / pair[0]).is_file())
    source, target = (sentencepiece.SentencePieceProcessor(model_file=str(path / name)) for name in pair)
    prefix, target_prefix = [], []
    if "bpe" in pair[0]:
        vocabulary = (path / "shared_vocabulary.json").read_text("utf-8")
        prefix, target_prefix = (["__en__"], ["__de__"]) if "__en__" in vocabulary else (["eng_Latn"], ["deu_Latn"])
    added = json.loads((path / "tokens.json").read_text("utf-8")) if (path / "tokens.json").is_file() else {}
    outputs = []
    for text in texts:
        code, _, rest = text.partition(" ") if text.startswith(">>") else ("", "", text)
        parts = re.split(f"({'|'.join(added)})", rest) if added else [rest]
        split = [[part] if part in added else source.encode(part, out_type=str) for part in parts]
        pieces = [*prefix, *[code] * bool(code), *itertools.chain(*split)]
        options = {"beam_size": 1, "max_decoding_length": len(pieces) + LIMITS["extra_length"]}
        (result,) = engine.translate_batch([pieces], target_prefix=[target_prefix], min_decoding_length=0, **options)
        text = target.decode(result.hypotheses[0][len(target_prefix) :])
        outputs.append(text.replace(" \u2047 ", "") if rest.strip() else "")  # without the unknown token's text
    return outputs


def transformers(path, texts):
    """Hugging Face's library. Greedy, since its length penalty differs."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from by_transformers import asked

    languages = None
    if "NllbTokenizer" in (config := (path / "tokenizer_config.json").read_text("utf-8")):
        languages = ["eng_Latn", "deu_Latn", "deu_Latn"]
    elif "M2M100Tokenizer" in config:
        languages = ["en", "de", "__de__"]
    split = "<term>" not in config  # Splitting would include added tokens.
    _, outputs, _ = asked(path, texts, 1, SEARCH_OPTIONS["extra_length"].default, languages, split)
    wordless = re.compile(r"(>>.*?<<)?\s*")
    return ["" if wordless.fullmatch(text) else output for text, output in zip(texts, outputs, strict=True)]


def argos(path, texts):
    """The CTranslate2 export inside of the package. test_argos.py has Argos Translate itself."""
    (file,) = path.iterdir()
    folder = path.parent / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.unpack_archive(file, folder, "zip")
    (root,) = folder.iterdir()
    shutil.copy(root / "sentencepiece.model", root / "model" / "tokenizer.model")
    return ctranslate2(root / "model", texts)


class EntryPoint(NamedTuple):
    """An API or program that returns outputs of an export."""

    outputs: Callable[[Path, list[str]], list[str] | None]  # function of directory and texts
    takes: tuple[str, ...]  # names of formats
    ours: bool = True  # whether our code raises for other formats, not another library


OPENED = ("savedmodel", "litert", "onnx")
LOADED = (*OPENED, "transformers")  # a checkpoint is loaded as any other
ENTRY_POINTS = {
    "saved_model.load": EntryPoint(saved_model_load, ("savedmodel",), ours=False),
    "TFSMLayer": EntryPoint(keras_layer, ("savedmodel",), ours=False),
    "C++ loader": EntryPoint(cpp_loader, ("savedmodel",), ours=False),
    "tt.load": EntryPoint(load, LOADED),
    "from_pretrained": EntryPoint(from_pretrained, ("savedmodel", "transformers")),
    "Beam": EntryPoint(beam, LOADED),
    "translate": EntryPoint(translate, LOADED),
    "evaluate": EntryPoint(evaluate, LOADED),
    "check": EntryPoint(check, OPENED),
    "serve": EntryPoint(serve, LOADED),
    "REST": EntryPoint(rest, LOADED),
    "gRPC": EntryPoint(grpc, LOADED),
    "client file": EntryPoint(client_file, ("litert", "onnx")),
    "CTranslate2": EntryPoint(ctranslate2, ("ctranslate2",), ours=False),
    "Argos Translate": EntryPoint(argos, ("argos",), ours=False),
    "transformers": EntryPoint(transformers, ("transformers",), ours=False),
}
