"""Checkpoints of MarianMT against what `transformers` answers with them.

tests/marian holds one and its answers, made by tests/marian/make.py. Where transformers and torch are installed
(pip install torch "transformers<6"), others are made anew: pytest tests/extensions/interop/test_marian.py
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
    return checkpoint_in(folder).model()


@pytest.fixture(scope="module")
def rows(folder):
    """The checkpoint's ids by ours."""
    return checkpoint_in(folder).target.rows


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


def test_a_search_cannot_choose_padding_or_start(model, answers):
    memory, mask, _ = model.encode(ours(answers["source"]))
    start = np.full((len(answers["source"]), 1), BOS_ID)
    logits, _ = model.decode_step(start, model.init_cache(memory, 1), mask, [0], 0)
    whole, *_ = model.decode(start, memory, mask)
    assert np.all(array(logits)[..., :EOS_ID] == -1e9)
    np.testing.assert_allclose(array(logits)[..., EOS_ID:], array(whole)[..., EOS_ID:], atol=1e-4)
