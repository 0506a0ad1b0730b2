"""An encoder-decoder of KerasHub's layers, with its learned positions and its BeamSampler."""

import itertools
import os

from benchmarks import common

POSITIONS = 64


def layers(work, args, policy):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tf = common.prepare_tensorflow(args)
    import keras
    import keras_hub

    keras.utils.set_random_seed(common.SEED)
    keras.config.set_dtype_policy(policy)
    kinds = keras_hub.layers
    embedding = kinds.TokenAndPositionEmbedding(
        work.vocab_size, max(POSITIONS, work.length), work.d_model, tie_weights=True
    )
    sizes = {"intermediate_dim": work.d_ff, "num_heads": work.num_heads, "dropout": work.dropout}
    encoder = [kinds.TransformerEncoder(**sizes) for _ in range(work.num_layers)]
    decoder = [kinds.TransformerDecoder(**sizes) for _ in range(work.num_layers)]
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    x = keras.layers.Dropout(work.dropout)(embedding(source))
    for layer in encoder:
        x = layer(x)
    y = keras.layers.Dropout(work.dropout)(embedding(target))
    for layer in decoder:
        y = layer(y, x)
    model = keras.Model((source, target), embedding.token_embedding(y, reverse=True))
    return tf, model, embedding, encoder, decoder


def training(work, args):
    bfloat16 = args.dtype == "bfloat16"
    tf, model, *_ = layers(work, args, "mixed_bfloat16" if bfloat16 else "float32")
    import keras
    from keras import ops

    def loss(labels, logits):
        log_probs = ops.log_softmax(ops.cast(logits, "float32"))
        label = ops.take_along_axis(log_probs, ops.expand_dims(ops.cast(labels, "int32"), -1), -1)[..., 0]
        smoothing = work.label_smoothing
        return -ops.mean((1 - smoothing) * label + smoothing * ops.mean(log_probs, -1))

    model.compile(
        keras.optimizers.Adam(work.learning_rate, work.beta_1, work.beta_2, work.epsilon),
        loss,
        jit_compile=True if args.mode == "xla" else "auto",
    )
    batches = itertools.cycle(
        [
            ((tf.constant(source), tf.constant(target[:, :-1])), tf.constant(target[:, 1:]))
            for source, target in common.training_batches(work)
        ]
    )
    return lambda: float(model.train_on_batch(*next(batches)))


def translation(work, args):
    tf, model, embedding, encoder, decoder = layers(work, args, args.dtype)
    import keras_hub
    from keras import ops

    source = tf.constant(common.source_ids(work, args.sentences))
    slots, width = work.steps + 1, work.d_model // work.num_heads
    search = keras_hub.samplers.BeamSampler(num_beams=work.beam_size)

    def decode(ids, memory, self_cache, cross_cache, position, cross_position):
        """Runs all layers at `position`. Returns logits and both caches [B, layers, 2, length, h, d_k]."""
        x = embedding(ids, start_index=position)
        new_self_cache, new_cross_cache = [], []
        for i, layer in enumerate(decoder):
            x, layer_own, layer_cross = layer(
                x,
                memory,
                self_attention_cache=self_cache[:, i],
                self_attention_cache_update_index=position,
                cross_attention_cache=cross_cache[:, i],
                cross_attention_cache_update_index=cross_position,
            )
            new_self_cache.append(layer_own)
            new_cross_cache.append(layer_cross)
        if cross_position is not None:
            cross_cache = ops.stack(new_cross_cache, axis=1)
        return embedding.token_embedding(x, reverse=True), x, ops.stack(new_self_cache, axis=1), cross_cache

    def translate(source):
        memory = embedding(source)
        for layer in encoder:
            memory = layer(memory)
        prompt = ops.ones((args.sentences, slots), dtype="int32")

        def cache(length):
            shape = (args.sentences, work.num_layers, 2, length, work.num_heads, width)
            return ops.zeros(shape, dtype=embedding.compute_dtype)

        # The whole prompt fills it, as in KerasHub's models.
        _, _, self_cache, cross_cache = decode(prompt, memory, cache(slots), cache(work.source_length), 0, 0)

        def following(prompt, caches, index):
            self_cache, cross_cache, memory = caches
            newest = ops.slice(prompt, [0, index - 1], [args.sentences * work.beam_size, 1])
            logits, x, self_cache, cross_cache = decode(newest, memory, self_cache, cross_cache, index - 1, None)
            return logits[:, 0], x[:, 0], (self_cache, cross_cache, memory)

        return search(following, prompt, (self_cache, cross_cache, memory), index=1, model=model)

    translate = tf.function(translate, jit_compile=args.mode == "xla")
    return lambda: translate(source).numpy().shape[1] - 1


if __name__ == "__main__":
    common.run_peer(
        "kerashub",
        ["keras-hub", "keras", "tensorflow"],
        {"training": training, "translation": translation},
        ("float32", "bfloat16"),
        ("default", "xla"),
    )
