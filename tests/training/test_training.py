"""Loss and metrics of training (section 5)."""

import functools

import keras
import numpy as np
import oracle
import pytest
from conftest import COMPILERS, array, close, normal, value_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tf_transformer import (
    Adam,
    BadInput,
    Perplexity,
    SmoothedCrossEntropy,
    TokenAccuracy,
    TokenCount,
    Transformer,
    TransformerConfig,
)
from tf_transformer.layers import EncoderLayer, PositionalEmbedding

B, T, V = 3, 5, 23
TARGETS = np.array([[3, 7, 22, 1, 9], [4, 12, 0, 0, 0], [1, 2, 3, 4, 0]])  # [B, T]


def loss_and_gradient(targets, logits, epsilon):
    logits = keras.Variable(logits)
    loss, gradients = value_and_gradients(lambda: SmoothedCrossEntropy(epsilon)(targets, logits), [logits])
    return loss, gradients[0]


# 5.4 The loss


@given(
    B=st.integers(1, 3),
    T=st.integers(1, 5),
    V=st.integers(2, 11),
    epsilon=st.sampled_from([0.0, 0.1, 0.2, 0.9]),
    size=st.sampled_from([1.0, 20.0]),
    seed=st.integers(0, 99),
)
def test_the_loss_and_its_gradient(B, T, V, epsilon, size, seed):
    targets, logits = np.random.default_rng(seed).integers(0, V, (B, T)), size * normal(B, T, V, seed=seed)
    targets[0, 0] = V - 1  # at least one real token
    loss, gradient = loss_and_gradient(targets, logits, epsilon)
    close(loss, oracle.smoothed_cross_entropy(targets, logits, epsilon))
    close(gradient, oracle.smoothed_cross_entropy_gradient(targets, logits, epsilon), atol=1e-6)


def test_padding_has_a_loss_of_zero():
    loss, gradient = loss_and_gradient(np.zeros((B, T), "int32"), normal(B, T, V), 0.1)
    assert loss == 0 and np.all(array(gradient) == 0)


def test_large_logits_overflow_nothing():
    loss, gradient = loss_and_gradient(np.array([[1, 2]]), np.array([[[0, 3e4, -3e4], [3e4, 0, 0]]], "float32"), 0.0)
    close(loss, 1.5e4)
    close(gradient, np.array([[[0, 0, 0], [0.5, 0, -0.5]]]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_loss_is_float32_whatever_the_logits(dtype):
    logits = ops.cast(normal(B, T, V), dtype)
    loss = SmoothedCrossEntropy(0.1)(TARGETS, logits)
    assert ops.dtype(loss) == "float32"
    close(loss, oracle.smoothed_cross_entropy(TARGETS, array(logits), 0.1))


@pytest.fixture
def sixteen_bits():
    """Keras's default dtype is bfloat16, which has 8 significant bits, and its integers have 16 bits."""
    keras.config.set_floatx("bfloat16")
    keras.config.set_dtype_policy("bfloat16")  # it does not follow floatx once it was set
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def test_labels_are_integers_of_any_size(sixteen_bits):
    """In bfloat16, 257 and 259 are equal, and a count would end at 256."""
    targets, logits = np.array([[257, 300, 259]] * 101), np.zeros((101, 3, 307), "float32")
    logits[:, [0, 1, 2], [257, 300, 259]] = 19
    for options in ({}, {"dtype": "bfloat16"}):
        assert float(SmoothedCrossEntropy(0.0, **options)(targets, logits)) < 1e-3
    for metric, expected in ((TokenAccuracy(), 1), (Perplexity(), 1), (TokenCount(), 303)):
        metric.update_state(targets, logits)
        close(metric.result(), expected, atol=1e-3)
    for dtype in ("bfloat16", "float16"):
        for function in (SmoothedCrossEntropy(), TokenAccuracy().update_state, Perplexity(), TokenCount()):
            with pytest.raises(BadInput, match=f"labels: expected integers, got {dtype}"):
                function(ops.cast(targets, dtype), logits)


@pytest.mark.parametrize("options", [{}, {"positions": "learned"}])
def test_a_model_of_16_bits_trains(options, sixteen_bits):
    """It learns a label that bfloat16 cannot represent."""
    model = Transformer(TransformerConfig(1, 12, 17, 3, dropout=0.0, vocab_size=307, **options))
    model.build()
    metrics = [TokenAccuracy(), TokenCount()]
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossEntropy(0.0), metrics=metrics, run_eagerly=True)
    ids = np.full((29, 11), 301)
    history = model.fit((ids, ids), ids, 29, 4, verbose=0).history
    assert history["tokens"] == [29 * 11] * 4
    assert history["loss"][-1] < history["loss"][0] and history["accuracy"][-1] == 1


@pytest.mark.skipif("jit" not in COMPILERS, reason="nothing compiles on this backend")
def test_compiled_loss_and_gradient():
    logits = keras.Variable(normal(B, T, V))

    @COMPILERS["jit"]
    def compiled(targets):
        return value_and_gradients(lambda: SmoothedCrossEntropy(0.1)(targets, logits), [logits])

    loss, (gradient,) = compiled(ops.array(TARGETS))
    close(loss, oracle.smoothed_cross_entropy(TARGETS, array(logits), 0.1))
    close(gradient, oracle.smoothed_cross_entropy_gradient(TARGETS, array(logits), 0.1))


# Tokens that do not count, and wrong labels

MEASURES = [SmoothedCrossEntropy, TokenAccuracy, Perplexity, TokenCount]


@pytest.mark.parametrize("ignore_class", [0, 3, -1, -100, None])
@pytest.mark.parametrize("axes", ["BT", "BT1", "B"])
def test_the_loss_equals_kerass_for_any_ignored_class(ignore_class, axes):
    """Tokens have weights or not, and the loss is a mean or not reduced."""
    labels, logits = np.where(TARGETS == 0, ignore_class or 0, TARGETS), normal(B, T, V)
    weights = np.abs(normal(B, T, seed=3))
    if axes == "B":
        labels, logits, weights = labels[:, 2], logits[:, 2], weights[:, 2]
    y_true = labels[..., np.newaxis] if axes == "BT1" else labels
    for reduction in ("sum_over_batch_size", "none"):
        ours = SmoothedCrossEntropy(0.0, ignore_class=ignore_class, reduction=reduction)
        theirs = keras.losses.SparseCategoricalCrossentropy(True, ignore_class, reduction=reduction)
        close(ours(y_true, logits), theirs(labels, logits), atol=1e-6)
        close(ours(y_true, logits, weights), theirs(labels, logits, weights), atol=1e-6)
    for kind, values in ((TokenAccuracy, logits.argmax(-1) == labels), (TokenCount, None)):
        metric, counted = kind(ignore_class=ignore_class), labels != ignore_class
        assert metric.from_config(metric.get_config()).ignore_class == ignore_class
        metric.update_state(y_true, logits)
        close(metric.result(), counted.sum() if values is None else values[counted].mean())
        metric.update_state(y_true, logits, weights)
        if values is None:  # a token counts once, whatever its weight
            close(metric.result(), 2 * counted.sum())
    perplexity = Perplexity(ignore_class=ignore_class)
    perplexity.update_state(y_true, logits)
    ours = SmoothedCrossEntropy(0.0, ignore_class=ignore_class)
    close(perplexity.result(), np.exp(array(ours(labels, logits))))


def tagger(loss, labels, metrics=(), optimizer=keras.optimizers.SGD, **options):
    """Trains a model of layers whose masks come from its ids. Returns history, mask and logits."""
    random = np.random.default_rng(8)
    ids = random.integers(1, 19, (5, 7))
    ids[1, 4:] = ids[3, 2:] = 0
    keras.utils.set_random_seed(2)
    inputs = keras.Input((None,), dtype="int32")
    x = EncoderLayer(2, 13, dropout=0.0)(PositionalEmbedding(19, 6)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(optimizer(0.5), loss, metrics=[*metrics], **options)
    return model.fit(ids, labels, 5, 3, shuffle=False, verbose=0).history, ids > 0, model.predict(ids, verbose=0)


@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, pytest.param({"jit_compile": True}, marks=pytest.mark.slow)], ids=str
)
def test_a_tagger_counts_the_tokens_of_kerass_mask(options):
    """Its tag 0 is a class. Labels where the mask is False are ignored."""
    tags = np.random.default_rng(9).integers(0, 3, (5, 7))
    kerass = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected, real, logits = tagger(kerass, tags, **options)
    metrics = [TokenAccuracy(ignore_class=None), TokenCount(ignore_class=None)]
    loss = SmoothedCrossEntropy(0.0, ignore_class=None)
    ours, _, our_logits = tagger(loss, np.where(real, tags, -1), metrics, **options)
    close(ours["loss"], expected["loss"])
    close(our_logits, logits, atol=1e-5)
    assert ours["loss"][-1] < ours["loss"][0]
    if keras.backend.backend() != "jax":  # where Keras shows masks to losses but not to metrics
        assert ours["tokens"][-1] == real.sum() and 0 < ours["accuracy"][-1] < 1


@pytest.mark.parametrize("wrong", [-1, -100, V, 2**32 + 5])
@pytest.mark.parametrize("kind", MEASURES)
def test_a_wrong_label_is_an_error(kind, wrong):
    labels = TARGETS.copy()
    labels[1, 1] = wrong
    with pytest.raises(BadInput, match=rf"^labels: expected classes from 0 to below {V}, got {wrong}[^\n]*$"):
        kind()(labels, normal(B, T, V))


@pytest.mark.parametrize("kind", MEASURES)
def test_a_wrong_label_in_compiled_code_is_nan(kind):
    """Compiled code cannot raise."""
    measure, logits = kind(), ops.array(normal(B, T, V))
    for wrong in (-1, V):
        labels = TARGETS.copy()
        labels[1, 1] = wrong
        if kind is SmoothedCrossEntropy:
            assert np.isnan(array(COMPILERS["jit"](lambda labels: measure(labels, logits))(ops.array(labels))))
        elif keras.backend.backend() == "tensorflow":  # a compiled function on JAX has no variables
            COMPILERS["jit"](measure.update_state)(ops.array(labels), logits)
            assert np.isnan(array(measure.result()))


def test_labels_of_a_model_in_batches():
    """`fit` cannot check them before, unlike an array. Steps raise if they can, otherwise the loss is NaN."""
    random = np.random.default_rng(6)
    x, y = (random.integers(1, 11, (6, 5)), random.integers(1, 11, (6, 7))), random.integers(1, 11, (6, 7))
    y[2, 3:] = -100

    class Batches(keras.utils.PyDataset):
        num_batches = 1

        def __getitem__(self, index):
            return x, y

    def trained(loss, num_microbatches=1, eager=True):
        keras.utils.set_random_seed(1)
        model = Transformer(TransformerConfig(1, 6, 13, 2, dropout=0.0, vocab_size=11))
        model.build()
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eager)
        model.num_microbatches = num_microbatches
        return model.fit(Batches(), epochs=2, verbose=0).history["loss"]

    if keras.backend.backend() == "jax":
        assert np.isnan(trained(SmoothedCrossEntropy(), eager=False)).all()
    else:
        with pytest.raises(BadInput, match=r"got -100\. Pass ignore_class=-100 to loss and metrics .*$"):
            trained(SmoothedCrossEntropy(), eager=False)
    expected = trained(keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100))
    close(trained(SmoothedCrossEntropy(0.0, ignore_class=-100), num_microbatches=2), expected)


@pytest.mark.parametrize("kind", MEASURES)
def test_labels_of_another_shape_are_an_error(kind):
    one_hot = np.eye(V)[TARGETS]
    for labels in (one_hot, TARGETS[:, :4], TARGETS[:, 0], TARGETS.T):
        with pytest.raises(BadInput, match=r"^labels: expected shape \(3, 5\) for logits of .*, got \([0-9, ]*\)\. .*"):
            kind()(labels, normal(B, T, V))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's variables")
@pytest.mark.parametrize("kind", MEASURES)
def test_variables_of_tensorflow_are_tensors(kind):
    import tensorflow as tf

    logits = normal(B, T, V)
    close(kind()(tf.Variable(TARGETS), tf.Variable(logits)), kind()(TARGETS, logits))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "sum"}, "^reduction: expected 'sum_over_batch_size', 'mean', 'none' or None, got 'sum'"),
        ({"from_logits": True}, "got from_logits. Predictions are logits.$"),
        ({"dtype": "float64"}, "dtype: expected float32, as always in a SmoothedCrossEntropy, got .float64.$"),
    ],
)
def test_options_of_other_losses_are_an_error(options, message):
    with pytest.raises(BadInput, match=message):
        SmoothedCrossEntropy(**options)


def test_a_fit_needs_a_reduced_loss_and_no_class_weight():
    model = Transformer(TransformerConfig(1, 6, 13, 2, vocab_size=V))
    model.compile("sgd", SmoothedCrossEntropy(reduction="none"))
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(BadInput, match='^loss: expected one number per batch, got reduction="none"'):
            train((TARGETS, TARGETS), TARGETS)
        with pytest.raises(BadInput, match=r"^class_weight: .* Pass sample_weight=table\[labels\] instead\.$"):
            train((TARGETS, TARGETS), TARGETS, class_weight={3: 1.0})


def test_a_saved_loss_is_restored():
    """In an earlier version, the loss ignored only 0 and called its mean a sum."""
    loss = SmoothedCrossEntropy(0.2, ignore_class=-100, reduction="none")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    saved = keras.losses.serialize(SmoothedCrossEntropy(0.2))
    saved["config"] = {"name": "smoothed_cross_entropy", "reduction": "sum", "epsilon": 0.2}
    assert keras.losses.deserialize(saved).get_config() == SmoothedCrossEntropy(0.2).get_config()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's list of gradients")
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tracing_again_registers_no_gradient(trains):
    """TensorFlow lists each custom gradient that it traces, and never frees it and its graph."""
    from tensorflow.python.framework import ops as of_tensorflow

    def gradients_after_tracing():
        logits = keras.Variable(normal(B, T, V))
        COMPILERS["graph"](lambda: value_and_gradients(lambda: SmoothedCrossEntropy(0.1)(TARGETS, logits), [logits]))()
        if trains:
            fit()
        return len(of_tensorflow.gradient_registry.list())

    def fit():
        tagger(SmoothedCrossEntropy(), np.ones((5, 7)), [Perplexity()], Adam)
        model = Transformer(TransformerConfig(1, 6, 13, 2, vocab_size=V))
        model.compile("sgd", SmoothedCrossEntropy())
        model.fit((TARGETS, TARGETS), TARGETS, verbose=0)

    assert gradients_after_tracing() == gradients_after_tracing()


# Metrics


@pytest.mark.parametrize(
    "metric, expected",
    [
        (TokenAccuracy(), oracle.accuracy),
        (Perplexity(), oracle.perplexity),
        (TokenCount(), lambda targets, logits: sum(label != 0 for sentence in targets for label in sentence)),
    ],
    ids=["accuracy", "perplexity", "tokens"],
)
def test_a_metric_is_over_all_tokens_since_the_last_reset(metric, expected):
    """Batches of several shapes count like one."""
    batches = [(TARGETS, normal(B, T, V)), (np.array([[5, 6]]), normal(1, 2, V))]
    for targets, logits in batches:  # half of the labels are right, so that an accuracy is neither 0 nor 1
        for b, t in np.ndindex(targets.shape):
            logits[b, t, targets[b, t]] += 9 * (t % 2)
    all_targets, all_logits = (
        [sentence for batch in side for sentence in batch] for side in zip(*batches, strict=True)
    )
    for _ in range(2):
        for batch in batches:
            metric.update_state(*batch)
        close(metric.result(), expected(all_targets, all_logits))
        metric.reset_state()
    assert metric.result() == (1 if isinstance(metric, Perplexity) else 0)


def test_a_tie_is_not_accurate():
    logits = np.zeros((1, 3, V))
    logits[0, 1, [3, 5]] = logits[0, 2, 5] = 1.0
    metric = TokenAccuracy()
    metric.update_state(np.array([[5, 3, 5]]), ops.array(logits, "bfloat16"))
    close(metric.result(), 1 / 3)


@functools.cache
def trained_with_weights(axes, num_microbatches, loss):
    """Trains two epochs of a batch whose tokens or sentences have weights. Returns history and weights.

    Keras takes only weights of tokens, so those of sentences are repeated for it.
    """
    random = np.random.default_rng(5)
    x, y = (random.integers(1, 11, (6, 5)), random.integers(1, 11, (6, 7))), random.integers(0, 11, (6, 7))
    weights = random.random((6, 7) if axes == "BT" else 6).astype("float32")
    kerass = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    keras.utils.set_random_seed(1)
    model = Transformer(TransformerConfig(1, 16, 23, 2, dropout=0.0, vocab_size=11))
    model.build()
    loss, sample_weight = (
        (SmoothedCrossEntropy(0.0), weights)
        if loss == "ours"
        else (kerass, np.broadcast_to(weights.reshape(6, -1), (6, 7)))
    )
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=[TokenAccuracy(), Perplexity()], run_eagerly=True)
    model.num_microbatches = num_microbatches
    history = model.fit(x, y, 6, 2, shuffle=False, verbose=0, sample_weight=sample_weight).history
    return history, model.get_weights()


@pytest.mark.parametrize(("axes", "num_microbatches"), [("BT", 2), pytest.param("B", 1, marks=pytest.mark.slow)])
def test_fit_weighs_tokens_as_keras_does(axes, num_microbatches):
    (ours, weights), (theirs, expected) = (
        trained_with_weights(axes, n, loss) for n, loss in ((num_microbatches, "ours"), (1, "keras"))
    )
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)
    assert ours["loss"][1] < ours["loss"][0]
    for weight, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(B + 1,), (B, T - 1), (B, T, V)])
def test_weights_of_a_wrong_shape_are_an_error(shape):
    for weighted in (SmoothedCrossEntropy(), TokenAccuracy()):
        with pytest.raises(BadInput, match=rf"^sample_weight: expected shape \({B},\) or \({B}, {T}\), got "):
            weighted(TARGETS, normal(B, T, V), sample_weight=np.abs(normal(*shape)))


@pytest.mark.parametrize("axes", ["BT", "B", "B1", "BT1"])
def test_metrics_weigh_tokens(axes):
    logits, weights = normal(B, T, V), np.abs(normal(*({"B": B, "T": T, "1": 1}[axis] for axis in axes)))
    of_tokens = np.broadcast_to(weights.reshape(B, -1), (B, T)) * (TARGETS > 0)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_probs, TARGETS[..., np.newaxis], -1)[..., 0]
    for metric, values in ((TokenAccuracy(), logits.argmax(-1) == TARGETS), (Perplexity(), nats)):
        metric.update_state(TARGETS, logits, sample_weight=weights)
        mean = (of_tokens * values).sum() / of_tokens.sum()
        close(metric.result(), np.exp(mean) if metric.name == "perplexity" else mean)
