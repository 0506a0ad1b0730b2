"""The Transformer as a whole: Figure 1 and Table 3."""

import dataclasses
import functools

import keras
import numpy as np
import oracle
import pytest
from conftest import BACKEND, COMPILERS, array, close, draw_weights, value_and_gradients, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from promises import assert_cached_is_whole

from tf_transformer import PRESETS, Ensemble, SmoothedCrossEntropy, Transformer, TransformerConfig
from tf_transformer.config import BadInput
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.layers import DecoderLayer, EncoderLayer, int8
from tf_transformer.models.weights import copy_weights, freeze, frozen_weights
from trainers import costs

B, h, T, S, d, d_k, d_v, d_ff, V, N = 2, 3, 5, 7, 11, 13, 17, 19, 23, 2
SIZES = {"d_model": d, "d_ff": d_ff, "num_heads": h, "d_k": d_k, "d_v": d_v, "vocab_size": V}
SOURCE = np.array([[3, 9, 22, 4, 0, 0, 0], [8, 1, 5, 5, 17, 6, 2]])  # [B, S]
TARGET = np.array([[1, 7, 21, 0, 0], [1, 4, 12, 4, 19]])  # [B, T]
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def built(config=None, **options):
    model = Transformer(config or TransformerConfig(num_layers=N, **SIZES), **options)
    model.build()
    return draw_weights(model)


MODEL, ONE_LAYER = built(), TransformerConfig(num_layers=1, **SIZES)


def random_ids(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(1, V, shape)


KINDS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_length": 29},
    "shallow decoder": {"num_decoder_layers": 1, "activation": "gelu"},
    "norm first": {"num_decoder_layers": 3, "norm_first": True, "activation": "swish"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_weights(kind):
    config = TransformerConfig(num_layers=N, **KINDS[kind], **SIZES)
    options = {name: value for name, value in KINDS[kind].items() if name not in ("positions", "max_length")}
    model = built(config)
    logits, scores = model((SOURCE, TARGET), return_attention_scores=True)
    assert logits.shape == (B, T, V) and ops.dtype(logits) == "float32"
    for b in range(B):
        expected, expected_scores = oracle.transformer(SOURCE[b], TARGET[b], weights_of(model), N, h, **options)
        real = np.sum(TARGET[b] != 0)  # outputs at padding are not compared
        close(logits[b, :real], expected[:real], atol=1e-5)
        for i in range(N):
            close(scores.encoder[i][b], expected_scores["encoder"][i])
        for i in range(config.decoder_layers):
            close(scores.decoder[i][b, :, :real], expected_scores["decoder"][i][:, :real])
            close(scores.cross[i][b, :, :real], expected_scores["cross"][i][:, :real])


# Parameters


def parameters(name, vocab_size):
    """Returns the number of weights of a preset, in millions. test_costs.py compares the count with models."""
    return costs.parameters(dataclasses.replace(PRESETS[name], vocab_size=vocab_size)) / 1e6


# Table 3's last column, in millions. All rows fit a vocabulary of about 41,100. The paper does not state its size.
COLUMN = {
    "base": 65,
    "B_dk16": 58,
    "B_dk32": 60,
    "C_N2": 36,
    "C_N4": 50,
    "C_N8": 80,
    "C_d256": 28,
    "C_d1024": 168,
    "C_ff1024": 53,
    "C_ff4096": 90,
}


@pytest.mark.parametrize("name", COLUMN)
def test_the_column_of_parameters_in_table_3(name):
    assert round(parameters(name, 41_100)) == COLUMN[name]


def test_parameters_of_base_and_big():
    """213M for big, the paper's number, needs a vocabulary of 35,900."""
    assert round(parameters("big", 37_000)) == 214
    for vocab_size in (37_000, 40_960):
        assert parameters("base", vocab_size) == pytest.approx(44.10 + 512e-6 * vocab_size, abs=0.005)
        assert parameters("big", vocab_size) == pytest.approx(176.28 + 1024e-6 * vocab_size, abs=0.005)


# Laws


@settings(max_examples=4)
@given(B=st.integers(1, 3), S=st.integers(1, 6), T=st.integers(2, 6), data=st.data())
def test_future_tokens_change_nothing_before_them(B, S, T, data):
    source, target, t = random_ids(B, S), random_ids(B, T), data.draw(st.integers(1, T - 1))
    changed = np.concatenate([target[:, :t], random_ids(B, T - t, seed=1)], axis=1)
    close(MODEL((source, changed))[:, :t], MODEL((source, target))[:, :t], atol=1e-5)


def test_without_positions_only_the_order_of_the_source_is_lost():
    """If learned positions are zero, reordering the source does not change logits. Reordering the target does."""
    model = built(TransformerConfig(num_layers=N, positions="learned", max_length=29, **SIZES))
    model.embedding.position_embeddings.assign(np.zeros((29, d)))
    order = [6, 2, 0, 4, 5, 1, 3]
    expected = array(model((SOURCE, TARGET)))
    close(model((SOURCE[:, order], TARGET)), expected, atol=1e-5)
    assert np.abs(array(MODEL((SOURCE[:, order], TARGET)) - MODEL((SOURCE, TARGET)))).max() > 0.1
    assert np.abs(array(model((SOURCE, TARGET[:, [1, 0, 2, 3, 4]]))[:, 2:]) - expected[:, 2:]).max() > 0.1


def test_an_all_padding_source_gives_no_nan():
    assert np.all(np.isfinite(array(MODEL((np.zeros((B, S), "int32"), TARGET)))))


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=[pytest.mark.program] * (BACKEND == "tensorflow" and mode == "jit"))
        for mode in COMPILERS
    ],
)
def test_cached_is_the_whole_sequence(mode):
    """The target contains id 0, which a search may choose."""
    target, model = random_ids(B, T), MODEL if mode == "eager" else built(ONE_LAYER)
    target[:, 2] = 0
    assert_cached_is_whole(model, SOURCE, target, COMPILERS[mode])
    whole = COMPILERS[mode](lambda *ids: model(ids))
    close(whole(ops.array(SOURCE), ops.array(target)), model((SOURCE, target)), atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_logits_weights_and_loss_are_float32_whatever_the_policy(policy):
    model = built(dtype=policy)
    logits, scores = model((SOURCE, TARGET), return_attention_scores=True)
    loss = SmoothedCrossEntropy()(TARGET, logits)
    assert {ops.dtype(x) for x in (logits, loss, *scores.encoder, *scores.decoder, *scores.cross)} == {"float32"}
    assert {weight.dtype for weight in model.weights} == {"float32"}
    for layer_scores in (*scores.encoder, *scores.decoder, *scores.cross):
        close(array(layer_scores).sum(-1), np.ones(layer_scores.shape[:-1]))
    close(logits, MODEL((SOURCE, TARGET)), rtol=0, atol=1e-4 if policy == "float32" else 0.5)


def test_the_gradient_of_every_weight_is_that_of_the_papers_loss():
    """Against finite differences of the oracle's loss, in float64: a random direction through each weight."""
    config = TransformerConfig(num_layers=1, d_model=5, d_ff=7, num_heads=2, d_k=3, d_v=2, dropout=0.0, vocab_size=11)
    model, epsilon, step = built(config), 0.1, 1e-5
    source, target = np.array([[3, 9, 4], [8, 5, 0]]), np.array([[1, 7], [1, 6]])
    labels = np.array([[7, 2], [6, 0]])
    loss, gradients = value_and_gradients(
        lambda: SmoothedCrossEntropy(epsilon)(labels, model((source, target))), model.trainable_weights
    )
    weights = weights_of(model)

    def loss_of(weights):
        logits = [oracle.transformer(*sentences, weights, 1, 2)[0] for sentences in zip(source, target, strict=True)]
        return oracle.smoothed_cross_entropy(labels, logits, epsilon)

    close(loss, loss_of(weights))
    assert len(gradients) == len(weights)
    random = np.random.default_rng(0)
    for path, gradient in zip(weights, gradients, strict=True):
        direction = random.standard_normal(gradient.shape)
        ahead, behind = (loss_of(weights | {path: weights[path] + sign * direction}) for sign in (step, -step))
        assert np.sum(array(gradient) * direction) == pytest.approx(
            (ahead - behind) / (2 * step), rel=1e-4, abs=1e-6
        ), path


# Variants


@keras.saving.register_keras_serializable("test_model")
class Deep(Transformer):
    """A model with one more decoder layer."""

    def make_decoder_layers(self):
        return [DecoderLayer(**self.layer_options(), name=f"decoder_{i}") for i in range(N)]


def test_a_variant_overrides_what_it_is_made_of(tmp_path):
    model = Deep(ONE_LAYER)
    model.build()
    weights = weights_of(draw_weights(model))
    logits = model((SOURCE, TARGET))
    expected, _ = oracle.transformer(SOURCE[1], TARGET[1], weights, 1, h, num_decoder_layers=N)
    close(logits[1], expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    for copy in (keras.models.load_model(tmp_path / "model.keras"), model.astype("float32")):
        assert type(copy) is Deep
        close(copy((SOURCE, TARGET)), logits)


@keras.saving.register_keras_serializable("test_model")
class Unnamed(Transformer):
    """A model with an additional weight, and with unnamed layers, which Keras numbers."""

    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.shift = self.add_weight((SIZES["vocab_size"],), "zeros")

    def make_encoder_layers(self):
        return [EncoderLayer(**self.layer_options()) for _ in range(N)]

    def make_decoder_layers(self):
        return [DecoderLayer(**self.layer_options()) for _ in range(N)]

    def logits(self, x, softmax_weights=None):
        return super().logits(x, softmax_weights) + ops.cast(self.shift, "float32")


@pytest.fixture(scope="module")
def unnamed():
    model = Unnamed(TransformerConfig(num_layers=N, **SIZES))
    model.build()
    return draw_weights(model)


def test_a_variant_without_names_in_another_dtype(unnamed, request, monkeypatch):
    expected, model = array(unnamed((SOURCE, TARGET))), unnamed
    for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 0.1), ("int8", 0.1), ("int8", 0.1)):
        if dtype == "int8":
            request.getfixturevalue("needs_int8")
            monkeypatch.setattr(int8, "MIN_INT8_ELEMENTS", 0)
        model = model.astype(dtype)
        assert type(model) is Unnamed
        difference = array(model((SOURCE, TARGET))) - expected
        assert np.linalg.norm(difference) < tolerance * np.linalg.norm(expected), dtype


@pytest.mark.parametrize("more", ["source", "copy"])
def test_a_weight_that_only_one_of_two_models_has_is_an_error(more):
    models = {"source": Transformer(ONE_LAYER), "copy": Transformer(ONE_LAYER)}
    models[more].more = keras.layers.Dense(3)
    models[more].more.build((None, 2))
    for model in models.values():
        model.build()
    with pytest.raises(BadInput, match=r"expected weights of shapes .*\(2, 3\), \(3,\)"):
        copy_weights(models["copy"], models["source"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_merged_in_another_dtype(dtype):
    tuned, plain = (built(ONE_LAYER, dtype=dtype) for _ in range(2))
    attention = tuned.decoder_layers[0].cross_attention
    for layer, name in ((attention.key_projection, "kernel"), (tuned.embedding, "embeddings")):
        layer.enable_lora(5, lora_alpha=3)
        for side in "ab":
            adapter = getattr(layer, f"lora_{name}_{side}")
            adapter.assign(np.random.default_rng(1).normal(0, 0.3, adapter.shape))
    expected = array(tuned((SOURCE, TARGET)))
    assert np.abs(expected - array(plain((SOURCE, TARGET)))).max() > 0.1
    tolerance = {"atol": 1e-5} if dtype == "float32" else {"rtol": 0.05, "atol": 0.2}
    for again in (tuned.merged(), tuned.astype("float32")):
        assert list(weights_of(again)) == list(weights_of(plain))
        close(again((SOURCE, TARGET)), expected, **tolerance)
    assert plain.merged() is plain
    several = Ensemble([tuned, tuned]).merged()
    assert not any("lora" in weight.path for weight in several.weights)
    assert several.merged() is several


def ragged(*rows):
    return pytest.importorskip("tensorflow").ragged.constant(rows)


@pytest.mark.parametrize(
    ("inputs", "got"),
    [
        (lambda: {"source": SOURCE, "target": TARGET}, "one dict"),
        (lambda: (SOURCE, TARGET, TARGET), "3 parts"),
        (lambda: (ragged([3, 2], [5]), ragged([1], [1, 4])), "a ragged tensor, for which write ids.to_tensor.*"),
        (lambda: (np.array(["a"]), np.array(["b"])), "strings. Make ids of texts with tt.data.token_batches.*"),
        (lambda: (SOURCE, TARGET[:1]), r"shapes \(2, 7\) and \(1, 5\)"),
    ],
)
def test_inputs_that_are_no_pair_of_ids_raise_bad_input(inputs, got):
    with pytest.raises(BadInput, match=rf"^inputs: expected \(source, target\), arrays .*; got {got}$"):
        MODEL(inputs())


def test_a_model_that_is_all_frozen_does_not_train():
    model = built(ONE_LAYER)
    model.compile("sgd", SmoothedCrossEntropy())
    for layer in model.layers:
        layer.trainable = False
    for train in (lambda *data: model.fit(*data, verbose=0), model.train_on_batch):
        with pytest.raises(BadInput, match="all frozen"):
            train((SOURCE, TARGET), TARGET)


@pytest.mark.parametrize("wrong", [-1, SIZES["vocab_size"]])
def test_an_id_out_of_the_vocabulary_raises_bad_input(wrong):
    """Source, target and labels are checked before a step. On a GPU TensorFlow would return zeros."""
    model = built(ONE_LAYER)
    model.compile("sgd", SmoothedCrossEntropy())
    ids = np.asarray(TARGET).copy()
    ids[-1, -1] = wrong
    for inputs, labels in (((ids, TARGET), TARGET), ((TARGET, ids), TARGET), ((TARGET, TARGET), ids)):
        with pytest.raises(BadInput, match=f"^expected ids from 0 to below vocab_size={V}, got {wrong}[^\n]*$"):
            model.fit(inputs, labels, verbose=0)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="other backends cannot raise in a step")
def test_evaluate_predict_and_calls_report_such_an_id_in_one_line():
    model = built(ONE_LAYER)
    model.compile("sgd", SmoothedCrossEntropy())
    wrong = (SOURCE, np.full_like(TARGET, V))
    for use in (lambda ids: model.evaluate(ids, TARGET, verbose=0), lambda ids: model.predict(ids, verbose=0), model):
        with pytest.raises(BadInput, match=f"^expected ids from 0 to below vocab_size={V}, got {V}$"):
            use(wrong)


def test_frozen_weights_can_be_frozen_in_another_model():
    """Models share names however they were built. A matrix with a LoRA adapter is trainable if the adapter is."""
    config = TransformerConfig(num_layers=N, **SIZES)
    tuned, again = Transformer(config), built(config)
    tuned((SOURCE, TARGET))
    assert frozen_weights(tuned) == []
    tuned.embedding.trainable = tuned.encoder_layers[1].trainable = False
    tuned.decoder_layers[0].self_attention.query_projection.kernel.trainable = False
    adapted, off = (tuned.decoder_layers[1].cross_attention.key_projection, tuned.decoder_layers[1].feed_forward.hidden)
    adapted.enable_lora(5)
    off.enable_lora(5)
    off.lora_kernel_a.trainable = off.lora_kernel_b.trainable = False
    parts = frozen_weights(tuned)
    assert parts == [
        *("embedding", "encoder_1", "decoder_0/self_attention/query/kernel", "decoder_1/feed_forward/hidden/kernel")
    ]
    freeze(again, parts)
    assert frozen_weights(again) == parts
    learning = {weight.path.split("/", 1)[1] for weight in again.trainable_weights}
    assert "encoder_0/feed_forward/hidden/kernel" in learning and "decoder_0/self_attention/query/bias" not in learning
    assert len(again.weights) - len(learning) == 1 + len(again.encoder_layers[1].weights) + 2


def test_names_that_no_model_has_cannot_be_frozen():
    with pytest.raises(BadInput, match="^frozen: expected .* in embedding, encoder_0, decoder_0; got 'encoder'$"):
        freeze(built(ONE_LAYER), ["embedding", "encoder"])


def test_fit_rejects_other_inputs():
    model, rows = built(ONE_LAYER), ragged([3, 2], [5])
    model.compile("sgd", SmoothedCrossEntropy(), run_eagerly=True)
    for x, y, message in (
        ({"source": SOURCE, "target": TARGET}, TARGET, r"^inputs: expected \(source, target\), .* got one dict$"),
        ((["Two doors."], ["Zwei"]), ["Zwei"], "^x, y: expected arrays of ids, got a list. Make ids of texts with"),
        ((rows, rows), rows, r"^labels: expected an array of ids \[B, T\], .* write labels.to_tensor\(\)$"),
        ((SOURCE, TARGET), None, r"^labels: expected ids \[B, T\], got none. Pass batches of"),
    )[: 4 if ON_TENSORFLOW else 2]:  # the third has a tensor of TensorFlow, the last needs our step
        with pytest.raises(BadInput, match=message):
            model.fit(x, y, verbose=0)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="ragged tensors are TensorFlow's")
def test_predict_takes_batches_of_any_length():
    """TensorFlow concatenates them to a ragged tensor."""
    data, lengths = pytest.importorskip("tensorflow").data.Dataset, (2, 5, 3)
    spec = ((pytest.importorskip("tensorflow").TensorSpec([None, None], "int32"),) * 2,)
    batches = data.from_generator(lambda: (((SOURCE, TARGET[:, :T]),) for T in lengths), output_signature=spec)
    logits = MODEL.predict(batches, verbose=0)
    for i, T in enumerate(lengths):
        close(logits[2 * i : 2 * i + 2].to_tensor(), MODEL((SOURCE, TARGET[:, :T])), atol=1e-5)


LOSSES = keras.losses


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        LOSSES.sparse_categorical_crossentropy,
        LOSSES.SparseCategoricalCrossentropy(),
        LOSSES.CategoricalFocalCrossentropy(),
        functools.partial(LOSSES.sparse_categorical_crossentropy, from_logits=False),
        LOSSES.KLDivergence(),
        [LOSSES.BinaryCrossentropy()],
    ],
)
def test_a_loss_of_probabilities_is_refused(loss):
    """Logits are no probabilities. The same for metrics."""
    model = Transformer(ONE_LAYER)
    for arguments in ({"loss": loss}, {"loss": SmoothedCrossEntropy(), "metrics": [loss]}):
        with pytest.raises(BadInput, match="(loss|metrics): expected one of logits, got .*, which takes probabilities"):
            model.compile("adam", **arguments)


def test_losses_of_logits_are_accepted():
    model, of_logits = (
        Transformer(ONE_LAYER),
        functools.partial(LOSSES.sparse_categorical_crossentropy, from_logits=True),
    )
    for loss in (SmoothedCrossEntropy(), LOSSES.SparseCategoricalCrossentropy(from_logits=True), of_logits):
        model.compile("adam", loss, metrics=["accuracy", "sparse_top_k_categorical_accuracy"])
        assert model.loss is loss


class Windowed(Transformer):
    """A variant with arguments of its own, one of them required."""

    def __init__(self, config, window=4, *, side, **kwargs):
        self.window, self.side = window, side
        super().__init__(config, **kwargs)

    def get_config(self):
        return super().get_config() | {"window": self.window, "side": self.side}


class Forgetful(Windowed):
    """A variant whose config lacks an argument."""

    def get_config(self):
        return {name: value for name, value in super().get_config().items() if name != "window"}

    def __init__(self, config, window=4, **kwargs):
        super().__init__(config, window, side="left", **kwargs)


@dataclasses.dataclass(frozen=True)
class WithMore(TransformerConfig):
    more: int = 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_variant_keeps_its_arguments_in_another_dtype(dtype):
    model = Windowed(WithMore(**ONE_LAYER.to_dict(), more=5), 2, side="right")
    model.build()
    copy = model.astype(dtype)
    assert (copy.window, copy.side, copy.config, copy.dtype_policy.name) == (2, "right", model.config, dtype)
    assert model.merged() is model
    forgetful = Forgetful(ONE_LAYER, 2)
    forgetful.build()
    with pytest.raises(BadInput, match="^Forgetful: expected all of its arguments in get_config, found no window$"):
        forgetful.astype(dtype)


def test_frozen_layers_without_names_are_found_in_a_new_process():
    """Keras numbers such layers as they are made. So a model that is made later has other numbers."""
    first, second = (Unnamed(TransformerConfig(num_layers=N, **SIZES)) for _ in range(2))
    for model in (first, second):
        model.build()
    for weight in first.decoder_layers[0].weights:
        weight.trainable = False
    frozen = frozen_weights(first)
    assert frozen == ["decoder_layer"] != [first.decoder_layers[0].name]
    freeze(second, frozen)
    assert frozen_weights(second) == frozen and not second.decoder_layers[0].weights[0].trainable
