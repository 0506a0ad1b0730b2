"""Tests files of checkpoints of all families: each is read once, and weights may be in several kinds of files."""

import collections
import contextlib
import functools
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import M2M100, MAKERS, MARIAN, copied, in_a_pickle, in_h5, in_several_files
from test_reading import assert_rejected as rejected

import tf_transformer as tt
from tf_transformer.extensions.interop.families import weights
from tf_transformer.extensions.interop.families.m2m100.family import M2M100Checkpoint
from tf_transformer.extensions.interop.families.marian import family
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.models.families import family_of_folder

numpy_files = pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("kind", MAKERS)
def test_each_file_is_read_once(kind, tmp_path, monkeypatch):
    MAKERS[kind](folder := tmp_path / "checkpoint")
    read = collections.Counter()

    def counted(function):
        def reader(path, *more):
            read[Path(path).name] += 1
            return function(path, *more)

        return reader

    monkeypatch.setattr(Path, "read_bytes", counted(Path.read_bytes))
    monkeypatch.setattr(family, "read_npz", counted(family.read_npz))
    monkeypatch.setitem(weights.READERS, "model.safetensors", counted(weights.READERS["model.safetensors"]))
    family_of_folder(folder).load(folder)
    names = {file.name for file in folder.iterdir()} - {"preprocess.sh"}  # in Marian's releases
    assert read == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    "values",
    [
        {"vocab_size": 10**12, "decoder_vocab_size": 10**12},
        {"vocab_size": "386"},
        {"d_model": 2**40},
        {"encoder_layers": 10**9},
        {"encoder_layers": "6"},
        {"encoder_attention_heads": None},
    ],
)
def test_sizes_are_checked_before_they_take_memory(values, tmp_path):
    folder, (name, *_) = copied(MARIAN, tmp_path, **values), values
    names = {"encoder_layers": "num_layers", "encoder_attention_heads": "num_heads"}
    rejected(checkpoint_in(folder).load, f"config.json: .*{names.get(name, name)}")


def test_the_size_of_a_vocabulary_without_weights_is_limited(tmp_path):
    folder = copied(MARIAN, tmp_path, vocab_size=10**12)
    (folder / "model.safetensors").unlink()
    most = "config.json: vocab_size: expected a number up to 16,777,216, got '1000000000000'"
    rejected(checkpoint_in(folder).tokenizer, most)


def test_pointers_of_git_lfs_are_named(tmp_path):
    folder = copied(MARIAN, tmp_path)
    for name in ("source.spm", "model.safetensors"):
        (folder / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 300000000\n")
        rejected(checkpoint_in(folder).load, f"{name}: expected the file itself, .* Git LFS")


def test_wrong_indices_of_weights(tmp_path):
    in_several_files(copied(MARIAN, tmp_path))
    index = tmp_path / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    for wrong, message in (
        (files | {"model.shared.weight": "../model.safetensors"}, "expected names of files next to it"),
        (files | {"model.shared.bias": min(files.values())}, "expected files with all tensors .* model.shared.bias"),
        ({name: 7 for name in files}, "index.json: expected the weights of MarianMT"),
        ({"a": "nothing.safetensors"}, "found none at .*nothing.safetensors"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        rejected(checkpoint_in(tmp_path).model, message)


def test_pickles_need_a_safe_pytorch(tmp_path, monkeypatch):
    """Before 2.6, `weights_only` could run code (CVE-2025-32434)."""
    (copied(MARIAN, tmp_path) / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cu124"))
    rejected(checkpoint_in(tmp_path).model, "pytorch_model.bin: expected PyTorch 2.6 or later .*, got 2.5.1")


def some_bfloat16(folder):
    import ml_dtypes

    in_several_files(folder, ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "source, change, precision",
    [
        (MARIAN, in_several_files, 0),
        (M2M100, some_bfloat16, 2**-7),
        (MARIAN, in_h5, 0),
        (MARIAN, functools.partial(in_h5, leaf="embeddings"), 0),  # newer files
        (MARIAN, in_a_pickle, 0),
        (M2M100, in_a_pickle, 0),
    ],
)
def test_weights_in_other_files(source, change, precision, tmp_path):
    if change is in_a_pickle:
        pytest.importorskip("torch")
    change(copied(source, tmp_path))
    weights, expected = (family_of_folder(source).load(folder).model.get_weights() for folder in (tmp_path, source))
    for value, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=precision)


@pytest.mark.parametrize("devices", [None, ["CPU:0"]])
def test_a_table_is_read_some_rows_at_a_time(monkeypatch, devices):
    monkeypatch.setattr(weights, "ROWS_AT_ONCE", 97)
    checkpoint = M2M100Checkpoint(M2M100)
    with tf.distribute.MirroredStrategy(devices).scope() if devices else contextlib.nullcontext():
        model = checkpoint.model()
    table = numpy_files.load_file(M2M100 / "model.safetensors")["model.shared.weight"]
    np.testing.assert_array_equal(model.embedding.embeddings, table[checkpoint.target.rows].astype("float32"))


FILES = [(MARIAN, "target.spm"), (MARIAN, "vocab.json"), (M2M100, "config.json"), (M2M100, "sentencepiece.bpe.model")]


@pytest.mark.parametrize("source, name", FILES)
def test_missing_and_damaged_files(source, name, tmp_path):
    folder, family = copied(source, tmp_path), family_of_folder(source)
    (folder / name).unlink()
    with pytest.raises(tt.BadInput, match=f"expected a checkpoint of M.*, found no {name} in"):
        family.load(folder)
    kind, hostile = "SentencePiece model", (b"", b"# no model\n")
    if name.endswith("json"):
        kind, hostile = "JSON object", (b"{", b"[]")
    for content in hostile:
        (folder / name).write_bytes(content)
        with pytest.raises(tt.BadInput, match=f"{name}: expected a {kind}, got"):
            family.load(folder)


def test_missing_and_damaged_weights(tmp_path, monkeypatch):
    folder, family = copied(M2M100, tmp_path), family_of_folder(M2M100)
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(tt.BadInput, match="model.safetensors: expected the weights of M2M100, got something else: "):
        family.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tt.BadInput, match=r"found none of model.safetensors, .*, pytorch_model.bin.index.json in"):
        family.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"broken")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "torch", None)
        message = r"pytorch_model.bin: reading it without a model.safetensors .* takes torch: pip install"
        with pytest.raises(tt.BadInput, match=message):
            family.load(folder)
    with pytest.raises(tt.BadInput, match="pytorch_model.bin: expected the weights of M2M100, got |takes torch: pip"):
        family.load(folder)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(tt.BadInput, match=r'takes safetensors: pip install "tf-transformer\[hub\]"'):
        family.load(M2M100)


TENSORS = {"lm_head.weight": np.zeros((386, 36), "float32")}
WRONG = [  # settings, whose messages name the file, and weights
    (MARIAN, "config.json: .*model_type: expected 'marian', got 'bart'", {"model_type": "bart"}),
    (MARIAN, "config.json: .*activation_function: expected 'swish' or .*, got 't", {"activation_function": "tanh"}),
    (M2M100, "config.json: .*tie_word_embeddings: expected True, got False", {"tie_word_embeddings": False}),
    (MARIAN, "config.json: .*num_heads=5", {"encoder_attention_heads": 5}),
    (MARIAN, "config.json: .*num_decoder_heads: expected a divisor of d_model=36", {"decoder_attention_heads": 5}),
    (M2M100, "config.json: .*pad_token_id: expected a whole number, got '.'", {"pad_token_id": "x"}),
    (MARIAN, "config.json: .*pad_token_id: expected an id below vocab_size=386, got 386", {"pad_token_id": 386}),
    (M2M100, "config.json: .*__\\w+__: expected an id below vocab_size=300, got 300", {"vocab_size": 300}),
    (MARIAN, "vocab.json: ▁.*: expected an id below vocab_size=290, got", {"vocab_size": 290, "pad_token_id": 1}),
    (MARIAN, "expected a tensor model.encoder.embed_tokens", {"share_encoder_decoder_embeddings": False}),
    (MARIAN, "expected a row for each of vocab_size=388 tokens, got 386", {"vocab_size": 388}),
    (MARIAN, "found also model.encoder.layers.1.fc1.bias, ", {"encoder_layers": 1}),
    (MARIAN, "fc1.weight: expected shape \\(36, 109\\) .*, got \\(36, 72\\)", {"encoder_ffn_dim": 109}),
    (MARIAN, "lm_head.weight: expected the values", {"tensors": TENSORS}),
    (M2M100, "expected a tensor model.decoder.layer_norm.weight, f", {"drop": ["model.decoder.layer_norm.weight"]}),
]


@pytest.mark.parametrize("source, message, change", WRONG)
def test_settings_and_weights_that_do_not_fit(source, message, change, tmp_path):
    folder = copied(source, tmp_path, **change)
    with pytest.raises(tt.BadInput, match=message) as error:
        family_of_folder(folder).load(folder)
    assert "\n" not in str(error.value)


def test_a_table_under_each_of_its_names(tmp_path):
    table = numpy_files.load_file(MARIAN / "model.safetensors")["model.shared.weight"]
    names = ["model.encoder.embed_tokens.weight", "lm_head.weight"]
    folder = copied(MARIAN, tmp_path, drop=["model.shared.weight"], tensors=dict.fromkeys(names, table))
    weights, expected = (checkpoint_in(path).model().get_weights() for path in (folder, MARIAN))
    assert all(map(np.array_equal, weights, expected))


def test_settings_of_the_search(tmp_path):
    """Options with an equivalent. `transformers` also counts BOS and the language."""
    for source, first in ((MARIAN, 1), (M2M100, 2)):
        for settings, expected in (
            ({"num_beams": 10**9, "max_length": "512"}, {"beam_size": 16}),
            ({"num_beams": None, "max_length": first}, {}),
            ({"num_beams": True, "max_length": first + 1}, {"max_length": 1}),
        ):
            folder = copied(source, tmp_path / source.parent.name)
            (folder / "generation_config.json").write_text(json.dumps(settings))
            kind = checkpoint_in if source is MARIAN else M2M100Checkpoint
            assert kind(folder).options() == expected


def as_torch(tensors, folder, names):
    """Writes what a fake `torch.load` reads: NumPy's arrays."""
    for file in set(names.values()):
        with open(folder / file, "wb") as opened:
            np.savez(opened, **{name: tensors[name] for name in names if names[name] == file})


class FakeTensor(np.ndarray):
    numel = property(lambda self: lambda: self.size)
    float = property(lambda self: lambda: types.SimpleNamespace(numpy=lambda: np.asarray(self, "float32")))


def loaded_by_fake(path, **options):
    with np.load(path) as arrays:
        return {name: arrays[name].view(FakeTensor) for name in arrays.files}


def in_h5_files(folder, count):
    """Returns the index of the parts of a file, as TensorFlow's models are saved."""
    import h5py

    in_h5(folder)
    names = {}
    with h5py.File(folder / "tf_model.h5") as whole:
        whole.visititems(lambda name, item: names.update({name: ""} if isinstance(item, h5py.Dataset) else {}))
        names = {name: f"tf_model-{i % count:05}.h5" for i, name in enumerate(names)}
        for name, file in names.items():
            with h5py.File(folder / file, "a") as part:
                part[name] = whole[name][()]
    (folder / "tf_model.h5").unlink()
    return names


@pytest.mark.parametrize(("family", "kind"), [("marian", "torch"), ("m2m100", "torch"), ("marian", "h5")])
@pytest.mark.parametrize("count", [1, 3])
def test_weights_in_several_files_of_other_formats(family, kind, count, tmp_path, monkeypatch):
    """Without PyTorch, whose reader is replaced."""
    source, opened = {"marian": (MARIAN, checkpoint_in), "m2m100": (M2M100, M2M100Checkpoint)}[family]
    expected = opened(source).model()
    folder = copied(source, tmp_path)
    tensors = numpy_files.load_file(folder / "model.safetensors")
    if kind == "h5":
        names, index = in_h5_files(folder, count), "tf_model.h5.index.json"
    else:
        names = {name: f"pytorch_model-{i % count:05}.bin" for i, name in enumerate(tensors)}
        as_torch(tensors, folder, names)
        index = "pytorch_model.bin.index.json"
        fake = types.SimpleNamespace(__version__="2.6.0", Tensor=FakeTensor, load=loaded_by_fake)
        monkeypatch.setitem(sys.modules, "torch", fake)
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for ours, theirs in zip(opened(folder).model().weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    if kind == "torch":
        monkeypatch.setitem(sys.modules, "torch", None)
        rejected(opened(folder).model, r"pytorch_model-0000\d.bin: reading it .* takes torch: pip install")
