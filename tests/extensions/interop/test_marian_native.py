"""Compares native releases of Marian, made of a trained checkpoint, with CTranslate2's converter."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import by_ctranslate2
from conftest import array

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.family import (
    EMBEDDINGS,
    EXPECTED,
    EXPECTED_OF_ATTENTION,
    OPTIONS,
    NativeCheckpoint,
    checkpoint_in,
)

numpy_files = pytest.importorskip("safetensors.numpy")
pytest.importorskip("yaml")

sys.path.insert(0, str(Path(__file__).parents[2] / "marian"))
import separate  # noqa: E402

TRAINED = separate.TRAINED
SENTENCES = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))["sentences"]
WEIGHTS, VOCABULARY = "opus.spm-spm.transformer-align.model1.npz.best-perplexity.npz", "opus.spm-spm.vocab.yml"
# Marian writes them next to the weights.
MODEL_OPTIONS = """dec-depth: 1
dim-emb: 36
dim-vocabs:
  - 385
  - 385
enc-depth: 2
tied-embeddings: false
tied-embeddings-all: true
tied-embeddings-src: false
transformer-decoder-autoreg: self-attention
transformer-decoder-dim-ffn: 108
transformer-dim-ffn: 72
transformer-ffn-activation: swish
transformer-ffn-depth: 2
transformer-guided-alignment-layer: last
transformer-heads: 2
transformer-no-projection: false
transformer-postprocess: dan
transformer-postprocess-emb: d
transformer-postprocess-top: ""
transformer-preprocess: ""
transformer-tied-layers:
  []
transformer-train-position-embeddings: false
type: transformer
"""
DECODER = f"""relative-paths: true
models:
  - {WEIGHTS}
vocabs:
  - {VOCABULARY}
  - {VOCABULARY}
beam-size: 6
normalize: 1
word-penalty: 0
"""


def marian_s_name(name: str) -> str:
    """model.decoder.layers.0.encoder_attn.q_proj.weight -> decoder_l1_context_Wq"""
    _, side, _, number, *path, kind = name.split(".")
    prefix, short = f"{side}_l{int(number) + 1}", {"weight": "W", "bias": "b"}[kind]
    if path[0].startswith("fc"):
        return f"{prefix}_ffn_{short}{path[0][-1]}"
    part = {"self": "self", "enco": "context", "fina": "ffn"}[path[0][:4]]
    if path[0].endswith("_layer_norm"):
        last = {"weight": "scale", "bias": "bias"}[kind]
        return f"{prefix}_{part}_{'ffn' if part == 'ffn' else 'Wo'}_ln_{last}"
    return f"{prefix}_{part}_{short}{path[1][0]}"


def tensors_of_the_checkpoint() -> dict:
    """Returns the tensors of `transformers`, with a BOS of zeros, logit biases, and equal numbers of heads."""
    stored = numpy_files.load_file(TRAINED / "model.safetensors")
    tensors = {name: value.astype("float32") for name, value in stored.items()}
    tensors["model.shared.weight"][-1] = 0
    tensors["final_logits_bias"] = np.random.default_rng(1).normal(0, 0.5, (1, 386)).astype("float32")
    tensors["final_logits_bias"][:, -1] = 0
    return tensors


def marian_s_arrays(tensors: dict, pad: int = 385) -> dict:
    """Converts tensors to Marian's arrays, without the padding."""
    arrays = {"decoder_ff_logit_out_b": np.delete(tensors["final_logits_bias"], pad, axis=1)}
    for marian_s, name in EMBEDDINGS.items():
        if name in tensors:
            arrays[marian_s] = np.delete(tensors[name], pad, axis=0)
    for name, value in tensors.items():
        if ".layers." in name:
            arrays[marian_s_name(name)] = value.T if value.ndim == 2 else value[np.newaxis]
    return arrays


def write_release(folder, options=MODEL_OPTIONS, decoder=DECODER, arrays=None) -> Path:
    folder.mkdir()
    arrays = marian_s_arrays(tensors_of_the_checkpoint()) | (arrays or {})
    write_files(folder, options, decoder, arrays)
    ids = json.loads((TRAINED / "vocab.json").read_text())
    write_vocabulary(folder / VOCABULARY, list(ids)[:-1])
    return folder


def write_separate_release(folder) -> Path:
    """Writes a release of the checkpoint with two vocabularies of tests/marian/separate.py."""
    checkpoint = folder.parent / "separate"
    separate.split(checkpoint)
    tensors = numpy_files.load_file(checkpoint / "model.safetensors")
    arrays = marian_s_arrays({name: value.astype("float32") for name, value in tensors.items()}, separate.PAD)
    sizes = [len(arrays[f"{side}_Wemb"]) for side in ("encoder", "decoder")]
    options = MODEL_OPTIONS.replace("- 385\n  - 385", f"- {sizes[0]}\n  - {sizes[1]}")
    options = options.replace("\ntied-embeddings: false", "\ntied-embeddings: true").replace("all: true", "all: false")
    decoder = DECODER.replace(VOCABULARY, "a.src.vocab.yml", 1).replace(VOCABULARY, "a.trg.vocab.yml")
    folder.mkdir()
    write_files(folder, options, decoder, arrays)
    for file, name in (("vocab.json", "a.src.vocab.yml"), ("target_vocab.json", "a.trg.vocab.yml")):
        pieces = json.loads((checkpoint / file).read_text())
        write_vocabulary(folder / name, [piece for piece in pieces if piece != "<pad>"])
    return folder


def write_files(folder, options, decoder, arrays) -> None:
    arrays[OPTIONS] = np.frombuffer(options.encode() + b"\0", np.int8)
    with (folder / WEIGHTS).open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    (folder / "decoder.yml").write_text(decoder)
    for side in ("source", "target"):
        shutil.copy(TRAINED / f"{side}.spm", folder)
    (folder / "preprocess.sh").write_text("#!/bin/bash\n")


def write_vocabulary(file, pieces) -> None:
    lines = [f"{json.dumps(piece, ensure_ascii=False)}: {id}\n" for id, piece in enumerate(pieces)]
    file.write_text("".join(sorted(lines)), encoding="utf-8")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("native") / "release")


@pytest.fixture(scope="module")
def of_hugging_face(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native") / "checkpoint"
    shutil.copytree(TRAINED, folder)
    config = json.loads((TRAINED / "config.json").read_text()) | {"encoder_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors_of_the_checkpoint(), folder / "model.safetensors")
    return folder


def test_it_equals_the_checkpoint_of_transformers(release, of_hugging_face):
    native, checkpoint = checkpoint_in(release), checkpoint_in(of_hugging_face)
    model, expected = native.model(), checkpoint.model()
    assert model.config == expected.config and native.target == checkpoint.target
    for weight, other in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(other), err_msg=weight.path)
    assert native.tokenizer().fingerprint == checkpoint.tokenizer().fingerprint
    assert (native.options(), checkpoint.options()) == ({"beam_size": 6}, {"beam_size": 3, "max_length": 127})


def test_translations_and_log_probabilities_are_those_of_ctranslate2(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    release = write_separate_release(tmp_path / "release")
    vocabularies = sorted(map(str, release.glob("*.vocab.yml")))  # source, target
    ctranslate2.converters.MarianConverter(str(release / WEIGHTS), vocabularies).convert(str(tmp_path / "model"))
    texts, log_probs = by_ctranslate2(tmp_path / "model", release, SENTENCES, 4)
    translator = tt.Translator.from_pretrained(release, beam_size=4, length_penalty=0.0, patience=math.inf)
    outputs = [best[0] for best in translator.n_best(SENTENCES, 1)]
    assert [best.text for best in outputs] == texts and len(set(texts)) > 40
    np.testing.assert_allclose([best.log_prob for best in outputs], log_probs, atol=1e-4)


def test_options_that_mean_the_same(release, tmp_path):
    """Embeddings tied by two options, no beam size, and files of Hugging Face, which take precedence."""
    options = MODEL_OPTIONS.replace("all: true", "all: false").replace("src: false", "src: true")
    options = options.replace("\ntied-embeddings: false", "\ntied-embeddings: true")
    folder = write_release(tmp_path / "release", options, DECODER.replace("beam-size: 6", "beam-size:"))
    assert checkpoint_in(folder).config() == checkpoint_in(release).config()
    assert checkpoint_in(folder).options() == {}
    shutil.copytree(TRAINED, folder, dirs_exist_ok=True)
    assert checkpoint_in(folder).config().num_heads == 4


ODD = r""""</s>": 0
<unk>: 1
"null": 2
yes: 3
0x10: 4
<<: 5
"\x85": 6
? long
: 7
▁東京: 8
01: 9
"- ": 10
"\\": 11
"""


def test_pieces_are_those_of_ctranslate2(release, tmp_path):
    """They include names with other meanings in YAML."""
    pytest.importorskip("ctranslate2")
    from ctranslate2.converters.marian import load_vocab

    folder = tmp_path / "odd"
    shutil.copytree(release, folder)
    (folder / VOCABULARY).write_text(ODD, encoding="utf-8")
    expected = load_vocab(str(folder / VOCABULARY))
    _, ids = NativeCheckpoint(folder).ids("target")
    assert ids == {piece: id for id, piece in enumerate(expected)} | {"<pad>": 385} and len(expected) == 12


def test_a_vocabulary_of_lines(release, tmp_path):
    folder = write_release(tmp_path / "lines", decoder=DECODER.replace("vocab.yml", "vocab"))
    ids = json.loads((TRAINED / "vocab.json").read_text())
    (folder / "opus.spm-spm.vocab").write_text("\n".join(list(ids)[:-1]) + "\n", encoding="utf-8")
    (folder / VOCABULARY).unlink()
    assert checkpoint_in(folder).target == checkpoint_in(release).target


def test_padding_of_another_name_and_pieces_beyond_the_table(release, tmp_path):
    """Marian has no padding, so its name is a piece. Pieces without weights are ignored."""
    folder = tmp_path / "longer"
    shutil.copytree(release, folder)
    with (folder / VOCABULARY).open("a", encoding="utf-8") as file:
        file.write("beyond: 385\nfar: 1000\n")
    assert checkpoint_in(folder).target == checkpoint_in(release).target
    text = (folder / VOCABULARY).read_text(encoding="utf-8").replace('"z": ', "<pad>: ")
    (folder / VOCABULARY).write_text(text, encoding="utf-8")
    pieces = checkpoint_in(folder).target.pieces
    assert pieces[0] == "<<pad>>" and "<pad>" in pieces[4:] and "beyond" not in pieces


def fails(folder, message):
    """Checks that loading raises one line."""
    with pytest.raises(tt.BadInput, match=message) as raised:
        tt.Translator.from_pretrained(folder, family="marian")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_unsupported_options(tmp_path):
    folder = write_release(tmp_path / "release")
    for name in (*EXPECTED, *EXPECTED_OF_ATTENTION):
        write_files(folder, f"{MODEL_OPTIONS}{name}: odd\n", DECODER, {})
        assert WEIGHTS in fails(folder, f"{name}: expected .*, got 'odd'")


@pytest.mark.parametrize(
    "message, old, new",
    [
        ("type: expected 'transformer', got None", "type: transformer\n", ""),
        ("transformer-tied-layers: expected .., got .'1', '1'.", "tied-layers:\n  []", "tied-layers: [1, 1]"),
        ("tied-embeddings: expected 'true', got 'false'", "tied-embeddings-all: true", "tied-embeddings-all: false"),
        ("dim-vocabs: expected one number twice, got .'385', '386'.", "- 385\n  - 385", "- 385\n  - 386"),
        ("enc-depth: expected a number, got 'two'", "enc-depth: 2", "enc-depth: two"),
        ("npz: expected the options of .*: while", MODEL_OPTIONS, "a: [\n"),
        ("expected a row for each of vocab_size=387 tokens, got 386", "- 385\n  - 385", "- 386\n  - 386"),
        ("models: expected one file .npz, .* got one.npz, two.npz", f"- {WEIGHTS}", "- /a/one.npz\n  - /a/two.npz"),
        ("found no other.npz, which decoder.yml names, in", WEIGHTS, "other.npz"),
        ("vocabs: expected one for source and target, .* got opus.*, a.yml", f"- {VOCABULARY}\nbeam", "- a.yml\nbeam"),
        ("vocabs: expected two, for source and target, got opus", f"- {VOCABULARY}\nbeam", "- a\n  - b\nbeam"),
        ("found no other.spm, which decoder.yml names, in", VOCABULARY, "other.spm"),
        ("decoder.yml: expected a mapping of YAML, got .*: while", DECODER, "a: [\nb"),
    ],
)
def test_files_that_do_not_fit(tmp_path, message, old, new):
    assert (old in MODEL_OPTIONS) != (old in DECODER)
    changed = {"options": MODEL_OPTIONS.replace(old, new), "decoder": DECODER.replace(old, new)}
    fails(write_release(tmp_path / "release", **changed), message)


def test_damaged_files(release, tmp_path):
    quantized = {"encoder_l1_self_Wq": np.zeros((36, 36), "int8")}
    folder = write_release(tmp_path / "quantized", arrays=quantized)
    fails(folder, "encoder_l1_self_Wq: expected floating-point weights, .* got int8")
    folder = write_release(tmp_path / "less", arrays={"Wemb": None})
    fails(folder, "expected a tensor model.shared.weight, found none")
    for line, message in (("</s>: 0\n", "<unk>: expected an id below vocab_size=386, got None"), ("a: b\n", "a: exp")):
        (folder / VOCABULARY).write_text(line)
        fails(folder, f"{VOCABULARY}: {message}")
    content = (release / WEIGHTS).read_bytes()
    for damaged in (b"", b"PK nothing", content[:5000], content[:1000] + bytes(1000) + content[2000:]):
        (folder / WEIGHTS).write_bytes(damaged)
        shutil.copy(release / VOCABULARY, folder)
        fails(folder, f"{WEIGHTS}: expected arrays of NumPy, got something else")


def test_yaml_is_needed(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    fails(release, r'takes yaml: pip install "tf-transformer\[marian\]"')
