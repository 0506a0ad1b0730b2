"""The same weights in CTranslate2, an engine that we did not write: the same outputs and log-probabilities."""

import json
import math
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import draw_weights, random_model

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
    "narrow values": (9, 5.0, {"d_k": 11, "d_v": 2}),
    "other parts": (11, 4.0, {"d_k": 3, "d_v": 5}),
}


class OtherParts(tt.Transformer):
    """What CTranslate2 has and the paper has not, and decoders of other sizes than the encoders'."""

    def make_encoder_layers(self):
        options = self.layer_options() | {"use_bias": True, "epsilon": 1e-3, "activation": "swish"}
        return [layers.EncoderLayer(**options, name=f"encoder_{i}") for i in range(2)]

    def make_decoder_layers(self):
        options = self.layer_options() | {"use_bias": True, "epsilon": 1e-3, "activation": "gelu"}
        options |= {"num_heads": 3, "d_ff": 19}
        return [layers.DecoderLayer(**options, name=f"decoder_{i}") for i in range(3)]


@pytest.fixture(scope="module")
def corpus():
    pairs = tt.toy_corpus.corpus()["test"][-SENTENCES:]  # for these, random models write outputs of many lengths
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


REFUSED = {  # what is done to a model, by the message
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


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_cannot_express_is_refused_by_name(tokenizer, tmp_path, message):
    model = tt.Transformer(tt.TransformerConfig(2, 14, 23, 2, vocab_size=tokenizer.vocab_size))
    model.build()
    REFUSED[message](model)
    with pytest.raises(tt.BadInput, match=message):
        save(tt.Translator(model, tokenizer), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module", params=MODELS)
def both(request, tokenizer, tmp_path_factory):
    kind = OtherParts if request.param == "other parts" else tt.Transformer
    model = random_model(tokenizer.vocab_size, *MODELS[request.param], kind)
    return Both(model, tokenizer, tmp_path_factory.mktemp("ctranslate2") / "model")


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_outputs_and_log_probabilities_agree(both, corpus, beam_size):
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
    for ids, _, log_probs, length, finished, found in zip(*ours, theirs, strict=True):
        output = both.pieces.piece_to_id(found.hypotheses[0])
        if finished[0] and output[-1] != EOS_ID:
            # They weigh unfinished outputs of the greatest length against finished ones; ours takes the finished one.
            assert len(output) == LONGEST and found.scores[0] > log_probs[0]
            continue
        assert ids[0, : length[0]].tolist() == output
        # Sums of up to -100; without AVX-512 ours are up to 1.1e-5 from those of float64, theirs up to 1.5e-5.
        np.testing.assert_allclose(found.scores[0], log_probs[0], rtol=2e-5, atol=1e-4)
        lengths.append(int(length[0]))
    assert len(lengths) > 0.9 * SENTENCES and len(set(lengths)) >= 4, lengths  # the models are worth comparing


def test_a_shallow_decoder_that_normalizes_first(tokenizer, corpus, tmp_path):
    other = {"num_decoder_layers": 2, "norm_first": True, "activation": "swish"}
    model = tt.Transformer(tt.TransformerConfig(3, 14, 23, 2, vocab_size=tokenizer.vocab_size, **other))
    model.build()
    test_scores_of_given_targets_agree(Both(draw_weights(model), tokenizer, tmp_path / "model"), corpus)


@pytest.mark.program
def test_outputs_of_a_least_length_agree(both, corpus):
    """Greedily: theirs does not count the end symbol, and gives its share of the probability to the others."""
    source, length, _ = both.ours.source(tf.constant(corpus[0]))
    ours = both.ours.search(source, length, beam_size=1, min_length=7, max_length=LONGEST)
    lengths = {"min_decoding_length": 6, "max_decoding_length": LONGEST}
    theirs = both.theirs.translate_batch(both.split(corpus[0]), beam_size=1, return_end_token=True, **lengths)
    for ids, length, found in zip(ours.ids.numpy(), ours.lengths.numpy(), theirs, strict=True):
        assert ids[0, : length[0]].tolist() == both.pieces.piece_to_id(found.hypotheses[0])
    assert ours.lengths.numpy().min() == 7


def test_its_layer_normalization_has_our_epsilon(both):
    """Too little to be seen in the log-probabilities; CTranslate2's own would be 1e-5."""
    epsilon = 1e-3 if isinstance(both.ours.model, OtherParts) else 1e-6
    assert json.loads((both.folder / "config.json").read_text())["layer_norm_epsilon"] == epsilon


def test_scores_of_given_targets_agree(both, corpus):
    source, target = (both.ours.source(tf.constant(texts))[0] for texts in corpus)
    log_probs = both.ours.score_targets(source, target)
    found = both.theirs.score_batch(both.split(corpus[0]), both.split(corpus[1]))
    for ids, expected, scores in zip(target.numpy(), log_probs.numpy(), found, strict=True):
        np.testing.assert_allclose(scores.log_probs, expected[ids > 0], atol=1e-4)


def test_attention_agrees(both, corpus):
    """Greedy search's: what beam search returns in its first row is another beam's."""
    results = both.theirs.translate_batch(
        both.split(corpus[0]), beam_size=1, max_decoding_length=5, return_attention=True, return_end_token=True
    )
    source, length, _ = both.ours.source(tf.constant(corpus[0]))
    outputs = [both.pieces.piece_to_id(found.hypotheses[0]) for found in results]
    shifted = tf.ragged.constant([[BOS_ID, *ids[:-1]] for ids in outputs], tf.int32).to_tensor(PAD_ID)
    attention = np.mean(both.ours.model((source, shifted), return_attention_scores=True)[1].cross[-1], axis=1)
    ours, symbols = both.ours.detailed_search(source, length, beam_size=1, min_length=2, max_length=5)
    for row, (found, ids, tokens) in enumerate(zip(results, outputs, length.numpy(), strict=True)):
        np.testing.assert_allclose(found.attention[0], attention[row, : len(ids), :tokens], atol=1e-5)
        assert ours.ids[row, 0, : len(ids)].numpy().tolist() == ids
        attended = symbols.attended[row, 0, : len(ids)].numpy()
        assert attended.tolist() == np.argmax(found.attention[0], axis=1).tolist()


@pytest.fixture(scope="module")
def translator(tokenizer):
    return tt.Translator(random_model(tokenizer.vocab_size, *MODELS["sinusoidal"]), tokenizer)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantized_models_are_smaller(translator, tmp_path, quantization):
    """Quantizing leaves the model as it was; test_matrix.py runs what is written."""
    before = translator.model.get_weights()
    save(translator, tmp_path / "exact")
    save(translator, tmp_path / "small", quantization)
    for weight, copy in zip(translator.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, copy)
    ratio = (tmp_path / "small/model.bin").stat().st_size / (tmp_path / "exact/model.bin").stat().st_size
    assert ratio < 0.95  # of so small a model the positions, which int8 and int16 leave alone, are most


def test_what_it_does_not_write(translator, tmp_path, monkeypatch):
    with pytest.raises(tt.BadInput, match="quantization: expected 'int8', .*'bfloat16' or None, got 'int4'"):
        save(translator, tmp_path / "new", "int4")
    for name in ("ctranslate2", "ctranslate2.specs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(tt.BadInput, match=r'takes ctranslate2: pip install "tf-transformer\[ctranslate2\]"'):
        save(translator, tmp_path / "new")
