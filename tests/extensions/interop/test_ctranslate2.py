"""Compares outputs, log-probabilities and attention with CTranslate2, which has the same weights."""

import functools
import json
import math
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import random_model

import tf_transformer as tt
from tf_transformer import layers
from tf_transformer.extensions.interop.formats.ctranslate2 import QUANTIZATIONS, save
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

ctranslate2 = pytest.importorskip("ctranslate2")

SENTENCES, LONGEST = 31, 23
MODELS = {  # seeds whose outputs have many lengths
    "sinusoidal": (1, 3.0, {}),
    "learned": (13, 3.0, {"positions": "learned", "max_length": 113}),
    "other parts": (11, 4.0, {"d_k": 3, "d_v": 5}),
    "narrow values": (9, 5.0, {"d_k": 11, "d_v": 2, "norm_first": True}),  # only its scores are compared
}


class OtherParts(tt.Transformer):
    """Layers that CTranslate2 supports in addition to the paper's, with other sizes in the decoder."""

    def make_encoder_layers(self):
        options = self.layer_options() | {"use_bias": True, "epsilon": 1e-3, "activation": "swish"}
        return [layers.EncoderLayer(**options, name=f"encoder_{i}") for i in range(2)]

    def make_decoder_layers(self):
        options = self.layer_options() | {"use_bias": True, "epsilon": 1e-3, "activation": "gelu"}
        options |= {"num_heads": 3, "d_ff": 19}
        return [layers.DecoderLayer(**options, name=f"decoder_{i}") for i in range(3)]


@pytest.fixture(scope="module")
def corpus():
    pairs = tt.toy_corpus.corpus()["test"][-SENTENCES:]  # Random models have outputs of many lengths for these.
    return tuple(map(list, zip(*pairs, strict=True)))


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return tt.Tokenizer.train_from_iterator([*corpus[0], *corpus[1]], 331)


class Both:
    """One model in the two engines."""

    def __init__(self, model, tokenizer, folder):
        options = {"beam_size": 4, "length_penalty": 0.0, "extra_length": LONGEST, "patience": math.inf}
        self.ours = tt.Translator(model, tokenizer, **options)
        self.folder = folder
        save(self.ours, folder)
        self.theirs = ctranslate2.Translator(str(folder), intra_threads=1)
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))

    def split(self, texts):
        return self.pieces.encode(texts, out_type=str)


class Doubling(layers.FeedForward):
    def call(self, x):
        return 2 * super().call(x)


def activations(layers, *names):
    for layer, name in zip(layers, names, strict=True):
        layer.feed_forward.hidden.activation = keras.activations.get(name)


REJECTED = {  # changes of a model by their message
    "activation: expected one of relu, gelu, silu, .*, got tanh": (
        lambda model: activations(model.decoder_layers, "tanh", "tanh")
    ),
    "activation: expected the same value in all layers, .* got gelu and relu": (
        lambda model: activations(model.encoder_layers, "relu", "gelu")
    ),
    "num_heads: expected the same value in all layers, .* got 2 and 7": (
        lambda model: setattr(model.decoder_layers[1].cross_attention, "num_heads", 7)
    ),
    "epsilon: expected the same value in all layers, .* got 0.001 and 1e-06": (
        lambda model: setattr(model.decoder_layers[1].feed_forward_norm.norm, "epsilon", 1e-3)
    ),
    "encoder_0: .* what EncoderLayer does, .* got RestrictedEncoderLayer, which overrides attend_to_itself": (
        lambda model: setattr(model.encoder_layers[0], "__class__", layers.RestrictedEncoderLayer)
    ),
}


@pytest.mark.parametrize("message", REJECTED)
def test_unsupported_models_are_rejected(tokenizer, tmp_path, message):
    model = tt.Transformer(tt.TransformerConfig(2, 14, 23, 2, vocab_size=tokenizer.vocab_size))
    model.build()
    REJECTED[message](model)
    with pytest.raises(tt.BadInput, match=message):
        save(tt.Translator(model, tokenizer), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def both_of(tokenizer, tmp_path_factory):
    @functools.cache
    def both(name):
        kind = OtherParts if name == "other parts" else tt.Transformer
        model = random_model(tokenizer.vocab_size, *MODELS[name], kind)
        return Both(model, tokenizer, tmp_path_factory.mktemp("ctranslate2") / "model")

    return both


# test_scores_of_targets_agree has the weights of all models.
SEARCHES = [("sinusoidal", 4), pytest.param("sinusoidal", 1, marks=pytest.mark.slow)]
SEARCHES += [pytest.param(name, 4, marks=pytest.mark.slow) for name in ("learned", "other parts")]


@pytest.mark.parametrize("name, beam_size", SEARCHES)
def test_outputs_and_log_probabilities_agree(name, both_of, corpus, beam_size):
    both = both_of(name)
    source, length, _ = both.ours.source(tf.constant(corpus[0]))
    ours = [part.numpy() for part in both.ours.search(source, length, beam_size=beam_size, max_length=LONGEST)]
    theirs = both.theirs.translate_batch(
        both.split(corpus[0]),
        beam_size=beam_size,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=LONGEST,
        return_scores=True,
        return_end_token=True,
    )
    lengths = []
    for ids, _, log_probs, length, finished, result in zip(*ours, theirs, strict=True):
        output = both.pieces.piece_to_id(result.hypotheses[0])
        if finished[0] and output[-1] != EOS_ID:
            # CTranslate2 compares unfinished outputs of the maximum length with finished ones. Ours prefers the latter.
            assert len(output) == LONGEST and result.scores[0] > log_probs[0]
            continue
        assert ids[0, : length[0]].tolist() == output
        # Sums of up to -100. Without AVX-512 ours are up to 1.1e-5 from those of float64, theirs up to 1.5e-5.
        np.testing.assert_allclose(result.scores[0], log_probs[0], rtol=2e-5, atol=1e-4)
        lengths.append(int(length[0]))
    assert len(lengths) > 0.9 * SENTENCES and len(set(lengths)) >= 4, lengths  # The models are worth comparing.


def test_their_length_penalty_counts_eos(both_of, corpus):
    """As the module's docstring and the guide describe it."""
    both = both_of("sinusoidal")
    sources, options = both.split(corpus[0]), {"min_decoding_length": 0, "max_decoding_length": LONGEST}
    results = both.theirs.translate_batch(sources, beam_size=4, length_penalty=0.2, return_scores=True, **options)
    outputs = [result.hypotheses[0] for result in results]
    scored = both.theirs.score_batch(sources, outputs)  # with EOS
    ended = [k for k, output in enumerate(outputs) if len(output) < LONGEST]
    assert len(ended) > 5 and len({len(outputs[k]) for k in ended}) > 2
    for k in ended:
        expected = sum(scored[k].log_probs) / (len(outputs[k]) + 1) ** 0.2
        np.testing.assert_allclose(results[k].scores[0], expected, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_targets_agree(name, both_of, corpus):
    """The scores hardly depend on epsilon, which CTranslate2 sets to 1e-5 by default."""
    both = both_of(name)
    source, target = (both.ours.source(tf.constant(texts))[0] for texts in corpus)
    log_probs = both.ours.score_targets(source, target)
    results = both.theirs.score_batch(both.split(corpus[0]), both.split(corpus[1]))
    for ids, expected, result in zip(target.numpy(), log_probs.numpy(), results, strict=True):
        np.testing.assert_allclose(result.log_probs, expected[ids > 0], atol=1e-4)
    epsilon = 1e-3 if name == "other parts" else 1e-6
    assert json.loads((both.folder / "config.json").read_text())["layer_norm_epsilon"] == epsilon


def test_attention_agrees(both_of, corpus):
    """Of greedy search, since the first row of beam search's is of another beam."""
    both = both_of("sinusoidal")
    results = both.theirs.translate_batch(
        both.split(corpus[0]), beam_size=1, max_decoding_length=5, return_attention=True, return_end_token=True
    )
    source, length, _ = both.ours.source(tf.constant(corpus[0]))
    outputs = [both.pieces.piece_to_id(result.hypotheses[0]) for result in results]
    shifted = tf.ragged.constant([[BOS_ID, *ids[:-1]] for ids in outputs], tf.int32).to_tensor(PAD_ID)
    attention = np.mean(both.ours.model((source, shifted), return_attention_scores=True)[1].cross[-1], axis=1)
    ours, details = both.ours.detailed_search(source, length, beam_size=1, min_length=2, max_length=5)
    for row, (result, ids, tokens) in enumerate(zip(results, outputs, length.numpy(), strict=True)):
        np.testing.assert_allclose(result.attention[0], attention[row, : len(ids), :tokens], atol=1e-5)
        assert ours.ids[row, 0, : len(ids)].numpy().tolist() == ids
        attended = details.attended[row, 0, : len(ids)].numpy()
        assert attended.tolist() == np.argmax(result.attention[0], axis=1).tolist()


@pytest.fixture(scope="module")
def translator(tokenizer):
    return tt.Translator(random_model(tokenizer.vocab_size, *MODELS["sinusoidal"]), tokenizer)


def test_quantized_models_are_smaller(translator, tmp_path):
    """Quantizing does not change the model. test_matrix.py runs the exports."""
    before = translator.model.get_weights()
    for quantization in (None, *QUANTIZATIONS):
        save(translator, tmp_path / str(quantization), quantization)
    for weight, copy in zip(translator.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, copy)
    exact, *sizes = ((tmp_path / str(name) / "model.bin").stat().st_size for name in (None, *QUANTIZATIONS))
    assert max(sizes) < 0.95 * exact  # int8 and int16 keep positions, most of so small a model


def test_unknown_dtypes_and_a_missing_package(translator, tmp_path, monkeypatch):
    with pytest.raises(tt.BadInput, match="quantization: expected 'int8', .*'bfloat16' or None, got 'int4'"):
        save(translator, tmp_path / "new", "int4")
    for name in ("ctranslate2", "ctranslate2.specs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(tt.BadInput, match=r'takes ctranslate2: pip install "tf-transformer\[ctranslate2\]"'):
        save(translator, tmp_path / "new")
