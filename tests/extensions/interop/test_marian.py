"""Compares MarianMT checkpoints with `transformers`.

tests/marian/make.py made the checkpoint in tests/marian and the expected outputs. It makes others if transformers and
torch are installed (pip install torch "transformers<6").
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import array
from keras import ops

from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID

pytest.importorskip("safetensors")

HERE = Path(__file__).parents[2] / "marian"
sys.path.insert(0, str(HERE))
import make  # noqa: E402

FRESH = {
    "gelu, embeddings not scaled": {"activation_function": "gelu", "scale_embedding": False},
    "relu, a deep decoder": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3},
}


@pytest.fixture(scope="module", params=["stored", *FRESH])
def folder(request, tmp_path_factory):
    if request.param == "stored":
        return HERE
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        pytest.skip("transformers and torch are not installed")
    path = tmp_path_factory.mktemp("marian")
    make.make(path, **FRESH[request.param])
    return path


@pytest.fixture(scope="module")
def model(folder):
    return checkpoint_in(folder).model()


@pytest.fixture(scope="module")
def rows(folder):
    """Ids of the checkpoint by ours."""
    return checkpoint_in(folder).target.rows


@pytest.fixture(scope="module")
def expected_outputs(folder):
    return dict(np.load(folder / "answers.npz"))


def ours(ids):
    """Converts ids of the checkpoint to ours, except for BOS."""
    order = {make.PAD: PAD_ID, make.END: EOS_ID, make.UNKNOWN: UNKNOWN_ID}
    ordinary = [id for id in range(make.VOCABULARY) if id not in order]
    order |= {id: index for index, id in enumerate(ordinary, 4)}
    return np.vectorize(order.get)(ids)


def inputs(expected_outputs):
    target = ours(expected_outputs["target"])
    target[:, 0] = BOS_ID  # padding in the checkpoint
    return ours(expected_outputs["source"]), target


def test_ids_are_ours(model, rows):
    assert rows[:4] == [make.PAD, make.PAD, make.END, make.UNKNOWN]
    assert model.config.vocab_size == make.VOCABULARY + 1 == len(rows)
    assert np.array_equal(ours(rows[2:]), np.arange(2, len(rows)))
    embeddings = array(model.embedding.embeddings)
    assert np.array_equal(embeddings[PAD_ID], embeddings[BOS_ID])


def test_encoder_and_logits(model, rows, expected_outputs):
    source, target = inputs(expected_outputs)
    memory, mask, _ = model.encode(source)
    real = expected_outputs["source"] != make.PAD
    np.testing.assert_array_equal(array(mask), real)
    np.testing.assert_allclose(array(memory)[real], expected_outputs["memory"][real], atol=1e-4)
    logits = array(model((source, target)))
    np.testing.assert_allclose(logits[..., EOS_ID:], expected_outputs["logits"][..., rows[EOS_ID:]], atol=1e-4)


def test_padding_and_bos_have_no_probability(model, rows, expected_outputs):
    """Like a search of `transformers` with padding among the bad words, and "renormalize_logits"."""
    logits = expected_outputs["logits"][..., rows[EOS_ID:]]
    expected = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    log_probs = array(ops.log_softmax(model(inputs(expected_outputs))))
    np.testing.assert_allclose(log_probs[..., EOS_ID:], expected, atol=1e-4)
    assert log_probs[..., :EOS_ID].max() < -15


def test_epsilon_is_torch_s(model):
    """The logits hardly depend on it."""
    layers = [*model.encoder_layers, *model.decoder_layers]
    norms = [child.norm for layer in layers for name, child in vars(layer).items() if name.endswith("_norm")]
    assert len(norms) == 2 * model.config.num_layers + 3 * model.config.num_decoder_layers
    assert {norm.epsilon for norm in norms} == {1e-5}


def test_a_search_cannot_choose_padding_or_bos(model, expected_outputs):
    memory, mask, _ = model.encode(ours(expected_outputs["source"]))
    start = np.full((len(expected_outputs["source"]), 1), BOS_ID)
    logits, _ = model.decode_step(start, model.init_cache(memory, 1), mask, [0], 0)
    whole, *_ = model.decode(start, memory, mask)
    assert np.all(array(logits)[..., :EOS_ID] == -1e9)
    np.testing.assert_allclose(array(logits)[..., EOS_ID:], array(whole)[..., EOS_ID:], atol=1e-4)
