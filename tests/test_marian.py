"""Checkpoints of MarianMT against what `transformers` answers with them.

tests/marian holds one and its answers, made by tests/marian/make.py. Where transformers and torch are installed
(pip install torch "transformers<6"), others are made anew: pytest tests/test_marian.py
"""

import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path
from unittest import mock

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import array
from keras import ops

import tf_transformer as tt
from tf_transformer.families.marian.files import read_vocabulary
from tf_transformer.masks import PAD_ID
from tf_transformer.text.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID

pytest.importorskip("safetensors")
numpy_files = pytest.importorskip("safetensors.numpy")

HERE = Path(__file__).parent / "marian"
sys.path.insert(0, str(HERE))
import make  # noqa: E402

FRESH = {
    "gelu, embeddings not scaled": {"activation_function": "gelu", "scale_embedding": False},
    "relu, a deep decoder": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3},
}


@pytest.fixture(scope="module", params=["kept", *FRESH])
def folder(request, tmp_path_factory):
    if request.param == "kept":
        return HERE
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        pytest.skip("transformers and torch are not installed")
    path = tmp_path_factory.mktemp("marian")
    make.make(path, **FRESH[request.param])
    return path


@pytest.fixture(scope="module")
def model(folder):
    return tt.load_marian(folder)


@pytest.fixture(scope="module")
def rows(folder):
    """The checkpoint's ids by ours."""
    return read_vocabulary(folder).rows


@pytest.fixture(scope="module")
def answers(folder):
    return dict(np.load(folder / "answers.npz"))


def ours(ids):
    """Ids of the checkpoint as ours: of a source, or of what comes after a target's start symbol."""
    order = {make.PAD: PAD_ID, make.END: EOS_ID, make.UNKNOWN: UNKNOWN_ID}
    rest = [id for id in range(make.VOCABULARY) if id not in order]
    order |= {id: place for place, id in enumerate(rest, 4)}
    return np.vectorize(order.get)(ids)


def inputs(answers):
    target = ours(answers["target"])
    target[:, 0] = BOS_ID  # the checkpoint's is its padding
    return ours(answers["source"]), target


def search(model, source, beam_size, n_best=1):
    """At most as many symbols as the answers have; no length penalty."""
    tokenizer = mock.create_autospec(tt.Tokenizer, instance=True, vocab_size=model.config.vocab_size, languages=())
    tokenizer.start = lambda rows: tf.fill([rows, 1], BOS_ID)
    translator = tt.Translator(model, tokenizer)
    options = {"beam_size": beam_size, "length_penalty": 0.0, "max_length": make.LONGEST, "patience": math.inf}
    return translator.search(source, tf.fill([len(source)], 50), n_best=n_best, **options)


def test_ids_are_ours(model, rows):
    assert rows[:4] == [make.PAD, make.PAD, make.END, make.UNKNOWN]
    assert model.config.vocab_size == make.VOCABULARY + 1 == len(rows)
    assert np.array_equal(ours(rows[2:]), np.arange(2, len(rows)))
    embeddings = array(model.embedding.embeddings)
    assert np.array_equal(embeddings[PAD_ID], embeddings[BOS_ID])


def test_encoder_and_logits(model, rows, answers):
    source, target = inputs(answers)
    memory, mask, _ = model.encode(source)
    real = answers["source"] != make.PAD
    np.testing.assert_array_equal(array(mask), real)
    np.testing.assert_allclose(array(memory)[real], answers["memory"][real], atol=1e-4)
    logits = array(model((source, target)))
    np.testing.assert_allclose(logits[..., EOS_ID:], answers["logits"][..., rows[EOS_ID:]], atol=1e-4)


def test_padding_and_start_have_no_share_of_the_probability(model, rows, answers):
    """As in a search of `transformers` with the checkpoint's padding among the bad words, and "renormalize_logits"."""
    logits = answers["logits"][..., rows[EOS_ID:]]
    expected = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    found = array(ops.log_softmax(model(inputs(answers))))
    np.testing.assert_allclose(found[..., EOS_ID:], expected, atol=1e-4)
    assert found[..., :EOS_ID].max() < -15


def test_epsilon_is_torch_s(model):
    """Too little to be seen in the logits."""
    layers = [*model.encoder_layers, *model.decoder_layers]
    norms = [child.norm for layer in layers for name, child in vars(layer).items() if name.endswith("_norm")]
    assert len(norms) == 2 * model.config.num_layers + 3 * model.config.num_decoder_layers
    assert {norm.epsilon for norm in norms} == {1e-5}


def test_greedy_search(model, answers):
    found = search(model, ours(answers["source"]), beam_size=1)
    for ids, length, expected in zip(
        found.ids[:, 0].numpy(), found.lengths[:, 0].numpy(), answers["greedy"], strict=True
    ):
        expected = expected[1:]  # without the start symbol
        end = np.flatnonzero(expected == make.END)
        expected = expected[: end[0] + 1] if len(end) else expected
        assert ids[:length].tolist() == ours(expected).tolist()


def test_a_search_cannot_choose_padding_or_start(model, answers):
    memory, mask, _ = model.encode(ours(answers["source"]))
    start = np.full((len(answers["source"]), 1), BOS_ID)
    logits, _ = model.decode_step(start, model.init_cache(memory, 1), mask, [0], 0)
    whole, *_ = model.decode(start, memory, mask)
    assert np.all(array(logits)[..., :EOS_ID] == -1e9)
    np.testing.assert_allclose(array(logits)[..., EOS_ID:], array(whole)[..., EOS_ID:], atol=1e-4)


def test_beams_have_the_log_probability_that_the_model_gives_them(model, answers, beam_size=3):
    source = ours(answers["source"])
    found = search(model, source, beam_size, n_best=3)
    greedy = search(model, source, beam_size=1)
    finished = array(greedy.finished[:, 0])
    assert np.all(array(found.log_probs[:, 0])[finished] >= array(greedy.log_probs[:, 0])[finished] - 1e-5)
    for k in range(3):
        ids, lengths = array(found.ids[:, k]), array(found.lengths[:, k])
        real = np.arange(ids.shape[1]) < lengths[:, np.newaxis]
        assert np.all(ids[real] >= EOS_ID)
        shifted = np.pad(ids, [(0, 0), (1, 0)], constant_values=BOS_ID)[:, :-1]
        logits = array(model((source, shifted))).astype("float64")
        logits[..., :EOS_ID] = -np.inf
        log_probs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
        chosen = np.take_along_axis(log_probs, ids[..., np.newaxis], axis=-1)[..., 0]
        used = lengths > 0  # fewer than three outputs may have ended
        assert k > 0 or np.all(used)
        expected = np.where(real, chosen, 0).sum(axis=1)
        np.testing.assert_allclose(array(found.log_probs[:, k])[used], expected[used], atol=1e-4)


@pytest.fixture
def changed(tmp_path):
    """Changes a copy of the kept checkpoint."""

    def change(drop=(), tensors=None, **config):
        for name in ("config.json", "vocab.json", "model.safetensors"):
            shutil.copy(HERE / name, tmp_path)
        said = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(said | config))
        held = numpy_files.load_file(tmp_path / "model.safetensors") | (tensors or {})
        numpy_files.save_file({k: v for k, v in held.items() if k not in drop}, tmp_path / "model.safetensors")
        return tmp_path

    return change


def test_saving_and_loading(tmp_path):
    model, answers = tt.load_marian(HERE), np.load(HERE / "answers.npz")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(inputs(answers))), array(model(inputs(answers))))
    assert again.config == model.config


def test_a_table_under_each_of_its_names(changed):
    table = numpy_files.load_file(HERE / "model.safetensors")["model.shared.weight"]
    names = ["model.encoder.embed_tokens.weight", "lm_head.weight"]
    folder = changed(drop=["model.shared.weight"], tensors={name: table for name in names})
    assert same_logits(folder)


def same_logits(folder):
    found, expected = (tt.load_marian(each)(inputs(np.load(HERE / "answers.npz"))) for each in (folder, HERE))
    return np.array_equal(array(found), array(expected))


@pytest.mark.parametrize(
    "message, change",
    [
        ("model_type: expected 'marian', got 'bart'", {"model_type": "bart"}),
        ("activation_function: expected 'swish' or .*, got 'tanh'", {"activation_function": "tanh"}),
        ("normalize_embedding: expected False, got True", {"normalize_embedding": True}),
        ("tie_word_embeddings: expected True, got False", {"tie_word_embeddings": False}),
        ("expected a tensor model.encoder.embed_tokens", {"share_encoder_decoder_embeddings": False}),
        ("num_heads=5", {"encoder_attention_heads": 5}),
        ("pad_token_id: expected an id below vocab_size=31, got 31", {"pad_token_id": 31}),
        ("vocab.json: ▁29: expected an id below vocab_size=29, got 29", {"vocab_size": 29, "pad_token_id": 28}),
        ("expected a row for each of vocab_size=33 symbols, got 31", {"vocab_size": 33}),
        ("num_decoder_heads: expected a divisor of d_model=12, got 5", {"decoder_attention_heads": 5}),
        ("expected a tensor model.encoder.layers.2.self_attn.q_proj.weight", {"encoder_layers": 3}),
        ("found also model.encoder.layers.1.fc1.bias, ", {"encoder_layers": 1}),
        ("fc1.weight: expected shape \\(12, 18\\) .*, got \\(12, 17\\)", {"encoder_ffn_dim": 18}),
        ("lm_head.weight: expected the values", {"tensors": {"lm_head.weight": np.zeros((31, 12), "float32")}}),
        ("expected a tensor model.shared.weight", {"drop": ["model.shared.weight"]}),
    ],
)
def test_what_it_does_not_know_is_said(changed, message, change):
    with pytest.raises(tt.BadInput, match=message):
        tt.load_marian(changed(**change))


def test_no_checkpoint(changed, monkeypatch):
    folder = changed()
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(tt.BadInput, match="model.safetensors: expected the weights of MarianMT, got something else: "):
        tt.load_marian(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tt.BadInput, match="found none of model.safetensors, .*, tf_model.h5, pytorch_model.bin in"):
        tt.load_marian(folder)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(tt.BadInput, match=r'takes safetensors: pip install "tf-transformer\[hub\]"'):
        tt.load_marian(HERE)
    shutil.copy(HERE / "model.safetensors", folder)
    monkeypatch.undo()
    for content, message in (("{", ".*Expecting"), ("[]", "expected a JSON object, got .*list"), ("{}", "<unk>: exp")):
        (folder / "vocab.json").write_text(content)
        with pytest.raises(tt.BadInput, match=f"vocab.json: {message}"):
            tt.load_marian(folder)
    (folder / "vocab.json").unlink()
    with pytest.raises(tt.BadInput, match="found no vocab.json in"):
        tt.load_marian(folder)


@pytest.mark.parametrize("leaf", ["embeddings", "weight"])  # of newer files, and of older
def test_weights_that_tensorflow_saved(changed, leaf):
    """Under the names that TFMarianMTModel of transformers 4 gives them."""
    folder = changed()
    with h5py.File(folder / "tf_model.h5", "w") as file:
        for name, value in numpy_files.load_file(folder / "model.safetensors").items():
            *place, last = name.split(".")
            if place[-1:] == ["layers"] or name == "final_logits_bias":
                path = "final_logits_bias/final_logits_bias"
            elif name == "model.shared.weight":
                path = f"model/model.shared/model.shared/{leaf}"
            else:
                side, _, number, *rest = place[1:]
                norm = rest[-1].endswith("_norm")
                last = {"weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}[last]
                value = value.T if last == "kernel" else value
                path = "/".join(["model/tf_marian_mt_model/model", side, f"layers.{number}", *rest, last])
            file[f"{path}:0"] = value
        file[f"model/tf_marian_mt_model/model/encoder/embed_positions/{leaf}:0"] = np.zeros((64, 12))
    (folder / "model.safetensors").unlink()
    assert same_logits(folder)


def test_weights_that_pytorch_saved(changed, monkeypatch):
    folder = changed()
    tensors = numpy_files.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"broken")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "torch", None)
        said = r"pytorch_model.bin: reading it without a model.safetensors .* takes torch: pip install"
        with pytest.raises(tt.BadInput, match=said):
            tt.load_marian(folder)
    torch = pytest.importorskip("torch")
    with pytest.raises(tt.BadInput, match="pytorch_model.bin: expected the weights of MarianMT, got "):
        tt.load_marian(folder)
    torch.save({name: torch.tensor(value) for name, value in tensors.items()}, folder / "pytorch_model.bin")
    assert same_logits(folder)
