"""Seq2SeqTransformer of the TensorFlow Model Garden and its beam search, with an EOS that never comes."""

import itertools
import os

from benchmarks import common


def transformer(work, args):
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    tf = common.prepare_tensorflow(args)
    import tf_keras
    from official.nlp.modeling import models

    tf.random.set_seed(common.SEED)
    if args.dtype == "bfloat16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    sizes = {
        "num_layers": work.num_layers,
        "num_attention_heads": work.num_heads,
        "intermediate_size": work.d_ff,
        "activation": "relu",
        "dropout_rate": work.dropout,
        "attention_dropout_rate": 0.0,
        "intermediate_dropout": 0.0,
        "use_bias": False,
        "norm_first": args.dtype == "bfloat16",  # post-norm does not run there
    }
    model = models.Seq2SeqTransformer(
        vocab_size=work.vocab_size,
        embedding_width=work.d_model,
        dropout_rate=work.dropout,
        encoder_layer=models.TransformerEncoder(**sizes),
        decoder_layer=models.TransformerDecoder(**sizes),
        beam_size=work.beam_size,
        alpha=work.length_penalty,
        decode_max_length=work.steps,
        eos_id=-1,
    )
    return tf, tf_keras, model


def training(work, args):
    tf, tf_keras, model = transformer(work, args)
    from official.nlp.tasks.translation import _padded_cross_entropy_loss  # the loss of its TranslationTask

    adam = tf_keras.optimizers.Adam(work.learning_rate, beta_1=work.beta_1, beta_2=work.beta_2, epsilon=work.epsilon)

    @tf.function(jit_compile=args.mode == "xla")
    def train(source, target):
        with tf.GradientTape() as tape:
            logits = model({"inputs": source, "targets": target}, training=True)
            losses, weights = _padded_cross_entropy_loss(logits, target, work.label_smoothing, work.vocab_size)
            loss = tf.reduce_sum(losses) / tf.reduce_sum(weights)
        variables = model.trainable_variables
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    batches = [  # The model shifts the target.
        (tf.constant(source), tf.constant(target[:, 1:])) for source, target in common.training_batches(work)
    ]
    model({"inputs": batches[0][0], "targets": batches[0][1]})
    adam.build(model.trainable_variables)
    cycle = itertools.cycle(batches)
    return lambda: float(train(*next(cycle)))


def translation(work, args):
    tf, _, model = transformer(work, args)
    source = tf.constant(common.source_ids(work, args.sentences))
    translate = tf.function(
        lambda source: model({"inputs": source}, training=False)["outputs"], jit_compile=args.mode == "xla"
    )
    return lambda: translate(source).numpy().shape[1]


if __name__ == "__main__":
    common.run_peer(
        "tf_models",
        ["tf-models-official", "tensorflow"],
        {"training": training, "translation": translation},
        ("float32", "bfloat16"),
        ("default", "xla"),
    )
