"""Checkpoints of MarianMT against what `transformers` answers with them.

tests/marian holds one and its answers, made by tests/marian/make.py. Where transformers and torch are installed
(pip install torch "transformers<6"), others are made anew: pytest tests/test_marian.py
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import array

import tf_transformer as tt

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
def answers(folder):
    return dict(np.load(folder / "answers.npz"))


def test_encoder_and_logits(model, answers):
    memory, mask, _ = model.encode(answers["source"])
    real = answers["source"] != make.PAD
    np.testing.assert_array_equal(array(mask), real)
    np.testing.assert_allclose(array(memory)[real], answers["memory"][real], atol=1e-4)
    logits = model((answers["source"], answers["target"]))
    np.testing.assert_allclose(array(logits), answers["logits"], atol=1e-4)


def test_epsilon_is_torch_s(model):
    """Too little to be seen in the logits."""
    layers = [*model.encoder_layers, *model.decoder_layers]
    norms = [child.norm for layer in layers for name, child in vars(layer).items() if name.endswith("_norm")]
    assert len(norms) == 2 * model.config.num_layers + 3 * model.config.num_decoder_layers
    assert {norm.epsilon for norm in norms} == {1e-5}


def test_greedy_search(model, answers):
    found = model.search(answers["source"], make.LONGEST, beam_size=1)
    for ids, length, expected in zip(
        found.ids[:, 0].numpy(), found.lengths[:, 0].numpy(), answers["greedy"], strict=True
    ):
        expected = expected[1:]  # without the start symbol
        end = np.flatnonzero(expected == make.END)
        expected = expected[: end[0] + 1] if len(end) else expected
        assert ids[:length].tolist() == expected.tolist()
    assert make.PAD not in array(found.ids)


def test_beams_have_the_log_probability_that_the_model_gives_them(model, answers):
    found = model.search(answers["source"], make.LONGEST, beam_size=3, length_penalty=0.0, n_best=3)
    greedy = model.search(answers["source"], make.LONGEST, beam_size=1, length_penalty=0.0)
    finished = array(greedy.finished[:, 0])
    assert np.all(array(found.log_probs[:, 0])[finished] >= array(greedy.log_probs[:, 0])[finished] - 1e-5)
    for k in range(3):
        ids, lengths = array(found.ids[:, k]), array(found.lengths[:, k])
        shifted = np.pad(ids, [(0, 0), (1, 0)], constant_values=make.PAD)[:, :-1]
        logits = array(model((answers["source"], shifted))).astype("float64")
        logits[..., make.PAD] = -np.inf
        log_probs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
        chosen = np.take_along_axis(log_probs, ids[..., np.newaxis], axis=-1)[..., 0]
        chosen[np.arange(ids.shape[1]) >= lengths[:, np.newaxis]] = 0
        used = lengths > 0  # fewer than three outputs may have ended
        assert k > 0 or np.all(used)
        np.testing.assert_allclose(array(found.log_probs[:, k])[used], chosen.sum(axis=1)[used], atol=1e-4)


@pytest.fixture
def changed(tmp_path):
    """Changes a copy of the kept checkpoint."""

    def change(drop=(), tensors=None, **config):
        for name in ("config.json", "model.safetensors"):
            shutil.copy(HERE / name, tmp_path)
        said = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(said | config))
        held = numpy_files.load_file(tmp_path / "model.safetensors") | (tensors or {})
        numpy_files.save_file({k: v for k, v in held.items() if k not in drop}, tmp_path / "model.safetensors")
        return tmp_path

    return change


def test_saving_and_loading(tmp_path):
    model, answers = tt.load_marian(HERE), np.load(HERE / "answers.npz")
    inputs = (answers["source"], answers["target"])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(inputs)), array(model(inputs)))
    assert again.config == model.config


def test_a_table_under_each_of_its_names(changed):
    table = numpy_files.load_file(HERE / "model.safetensors")["model.shared.weight"]
    answers = np.load(HERE / "answers.npz")
    names = ["model.encoder.embed_tokens.weight", "lm_head.weight"]
    folder = changed(drop=["model.shared.weight"], tensors={name: table for name in names})
    logits = tt.load_marian(folder)((answers["source"], answers["target"]))
    np.testing.assert_allclose(array(logits), answers["logits"], atol=1e-4)


@pytest.mark.parametrize(
    "message, change",
    [
        ("model_type: expected 'marian', got 'bart'", {"model_type": "bart"}),
        ("activation_function: expected 'swish' or .*, got 'tanh'", {"activation_function": "tanh"}),
        ("normalize_embedding: expected False, got True", {"normalize_embedding": True}),
        ("share_encoder_decoder_embeddings: expected True", {"share_encoder_decoder_embeddings": False}),
        ("num_heads=5", {"encoder_attention_heads": 5}),
        ("pad_id: expected an id below vocab_size=31, got 31", {"pad_token_id": 31}),
        ("expected a tensor model.encoder.layers.2.self_attn.q_proj.weight", {"encoder_layers": 3}),
        ("found model.encoder.layers.1.fc1.bias, .* besides", {"encoder_layers": 1}),
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
    with pytest.raises(tt.BadInput, match="cannot be read"):
        tt.load_marian(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tt.BadInput, match="found no model.safetensors in"):
        tt.load_marian(folder)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(tt.BadInput, match=r"pip install tf-transformer\[marian\]"):
        tt.load_marian(HERE)
