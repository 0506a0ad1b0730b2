"""Compares a GPT of our layers with one of KerasHub's `TransformerDecoder`s with the same weights, on Keras's backend.

It prints whether logits and greedy outputs are equal, and tokens/s of training and of cached generation. It needs
keras-hub.
"""

import statistics

from benchmarks import common


def main(argv=None) -> dict:
    parser = common.parser("language_model", __doc__, dtypes=())
    add = parser.add_argument
    add("--sentences", type=int, default=8, help="prompts per request (8)")
    add("--prompt", type=int, default=5, help="tokens per prompt (5)")
    add("--repeats", type=int, default=7, help="timed steps and requests (7)")
    add("--warmup", type=int, default=2, help="steps and requests before that (2)")
    args = parser.parse_args(argv)
    work = common.WORKS[args.config]
    args.dtype = "float32"
    common.prepare(args)
    import keras
    import numpy as np

    if keras.backend.backend() == "tensorflow":
        common.prepare_tensorflow(args)
    theirs, ours = _keras_hub(work, args), _ours(work, args)
    random = np.random.default_rng(common.SEED)
    for weight in theirs.model.weights:
        weight.assign(random.normal(size=weight.shape) * 0.3 + ("gamma" in weight.path))
    _copy(theirs, ours)

    ids = random.integers(1, work.vocab_size, (3, 17)).astype("int32")
    logits = [keras.ops.convert_to_numpy(engine.model(ids)) for engine in (theirs, ours)]
    prompts = random.integers(1, work.vocab_size, (args.sentences, args.prompt)).astype("int32")
    outputs = [engine.generate(prompts) for engine in (theirs, ours)]
    rows = random.integers(1, work.vocab_size, (work.pairs, work.length + 1)).astype("int32")
    rates = {"training": [], "generation": []}
    for engine in (theirs, ours):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        engine.model.compile(keras.optimizers.Adam(1e-4), loss)
    for engine in (theirs, ours):  # generating first, while the weights are equal
        clock = common.timed(lambda engine=engine: engine.generate(prompts), args.repeats, args.warmup)
        rates["generation"].append(args.sentences * work.steps / statistics.median(clock.seconds(args.warmup)))
    for engine in (theirs, ours):
        step = lambda engine=engine: engine.model.train_on_batch(rows[:, :-1], rows[:, 1:])  # noqa: E731
        clock = common.timed(step, args.repeats, args.warmup)
        rates["training"].append(work.pairs * work.length / statistics.median(clock.seconds(args.warmup)))
    return common.say(
        "language_model",
        "tf_transformer",
        args,
        ["tf-transformer", "keras", "keras-hub"],
        backend=keras.backend.backend(),
        logits_differ_by=float(np.abs(logits[0] - logits[1]).max()),
        greedy_rows_equal=sum(map(np.array_equal, *outputs)),
        rows=args.sentences,
        **{f"{task}_tokens_per_second": round(both[1], 1) for task, both in rates.items()},
        **{f"{task}_ratio_to_keras_hub": round(both[1] / both[0], 2) for task, both in rates.items()},
        others_cores=round(clock.others(args.warmup), 2),
    )


class Engine:
    """A model, its layers, and a function from prompts to greedy outputs."""

    def __init__(self, model, embedding, blocks, norm, generate) -> None:
        self.model, self.embedding, self.blocks, self.norm, self.generate = model, embedding, blocks, norm, generate


def _ours(work, args) -> Engine:
    import keras
    import numpy as np

    import tf_transformer as tt

    longest = args.prompt + max(work.steps, work.length, 17)
    options = {"dropout": 0.0, "activation": "gelu", "norm_first": True, "use_bias": True, "epsilon": 1e-5}
    embedding = tt.layers.PositionalEmbedding(work.vocab_size, work.d_model, "learned", longest, 0.0, scale=False)
    blocks = [tt.layers.DecoderLayer(work.num_heads, work.d_ff, **options) for _ in range(work.num_layers)]
    stack = tt.LanguageModel(embedding, blocks, keras.layers.LayerNormalization(epsilon=1e-5))
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, stack(ids))

    def generate(prompts):
        # Id 0 ends nothing in KerasHub's sampler, and ours pads with it.
        outputs = stack.search(prompts.tolist(), work.steps, end_id=0, beam_size=1)
        return np.array([best.ids + [0] * (work.steps - len(best.ids)) for (best,) in outputs])

    return Engine(model, embedding, blocks, stack.norm, generate)


def _keras_hub(work, args) -> Engine:
    import keras
    import keras_hub
    from keras import ops

    longest = args.prompt + max(work.steps, work.length, 17)
    embedding = keras_hub.layers.TokenAndPositionEmbedding(work.vocab_size, longest, work.d_model)
    options = {"activation": "gelu", "layer_norm_epsilon": 1e-5, "normalize_first": True}
    kind = keras_hub.layers.TransformerDecoder
    blocks = [kind(work.d_ff, work.num_heads, **options) for _ in range(work.num_layers)]
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    ids = x = keras.Input((None,), dtype="int32")
    x = embedding(x)
    for block in blocks:
        x = block(x)
    model = keras.Model(ids, embedding.token_embedding(norm(x), reverse=True))
    d_k = work.d_model // work.num_heads

    def step(ids, cache, index):
        x, caches = embedding(ids, start_index=index), []
        for i, block in enumerate(blocks):
            x, new = block(x, self_attention_cache=cache[:, i], self_attention_cache_update_index=index)
            caches.append(new)
        return embedding.token_embedding(norm(x), reverse=True), ops.stack(caches, axis=1)

    def search(prompts):
        rows, length = prompts.shape
        cache = ops.zeros((rows, len(blocks), 2, length + work.steps, work.num_heads, d_k))
        _, cache = step(prompts, cache, 0)

        def following(ids, cache, index):
            logits, cache = step(ops.slice(ids, [0, index - 1], [rows, 1]), cache, index - 1)
            return ops.squeeze(logits, 1), None, cache

        padded = ops.pad(prompts, ((0, 0), (0, work.steps)))
        return keras_hub.samplers.GreedySampler()(following, padded, cache, index=length)

    compiled = _compiled(search)
    return Engine(
        model, embedding, blocks, norm, lambda ids: ops.convert_to_numpy(compiled(ids))[:, args.prompt :].astype(int)
    )


def _compiled(function):
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def _copy(theirs: Engine, ours: Engine) -> None:
    """Copies KerasHub's weights into our layers."""
    import keras

    # Through NumPy: on JAX, an array that both models held would go when one of them trains.
    array = keras.ops.convert_to_numpy
    ours.embedding.embeddings.assign(array(theirs.embedding.token_embedding.embeddings))
    ours.embedding.position_embeddings.assign(array(theirs.embedding.position_embedding.position_embeddings))
    pairs = [(ours.norm, theirs.norm)]
    for our, their in zip(ours.blocks, theirs.blocks, strict=True):
        attention, their_attention = our.self_attention, their._self_attention_layer
        for name in ("query", "key", "value", "output"):
            dense, projection = getattr(attention, f"{name}_projection"), getattr(their_attention, f"_{name}_dense")
            for ours_of, theirs_of in zip(dense.weights, projection.weights, strict=True):
                ours_of.assign(array(theirs_of).reshape(ours_of.shape))
        pairs += [
            (our.feed_forward.hidden, their._feedforward_intermediate_dense),
            (our.feed_forward.output_projection, their._feedforward_output_dense),
            (our.self_attention_norm.norm, their._self_attention_layer_norm),
            (our.feed_forward_norm.norm, their._feedforward_layer_norm),
        ]
    for layer, other in pairs:
        layer.set_weights(other.get_weights())


if __name__ == "__main__":
    main()
