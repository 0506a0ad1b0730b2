"""OpenNMT-tf's Transformer like the paper's, post-norm, without attention biases, with its training step and search."""

import itertools

from benchmarks import common


def transformer(work, args):
    tf = common.prepare_tensorflow(args)
    import opennmt

    tf.random.set_seed(common.SEED)
    vocabulary = args.work / f"opennmt-{work.vocab_size}.txt"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    tokens = ["<blank>", "<s>", "</s>"] + [f"w{i}" for i in range(work.vocab_size - 4)]  # The unknown token is added.
    vocabulary.write_text("\n".join(tokens) + "\n")
    model = opennmt.models.Transformer(
        num_layers=work.num_layers,
        num_units=work.d_model,
        num_heads=work.num_heads,
        ffn_inner_dim=work.d_ff,
        dropout=work.dropout,
        attention_dropout=0.0,
        ffn_dropout=0.0,
        mha_bias=False,
        output_layer_bias=False,
        pre_norm=False,
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
    )
    data = {"source_vocabulary": str(vocabulary), "target_vocabulary": str(vocabulary)}
    model.initialize(
        data,
        {
            "label_smoothing": work.label_smoothing,
            "average_loss_in_time": True,
            "beam_width": work.beam_size,
            "length_penalty": work.length_penalty,
            "num_hypotheses": 1,
            "minimum_decoding_length": work.steps,
            "maximum_decoding_length": work.steps,
        },
    )
    model.set_jit_compile(args.mode == "xla")
    model.create_variables()
    return tf, opennmt, model


def features(tf, ids):
    return {"ids": tf.constant(ids, tf.int64), "length": tf.fill([ids.shape[0]], ids.shape[1])}


def training(work, args):
    tf, opennmt, model = transformer(work, args)
    adam = opennmt.optimizers.make_optimizer(
        "Adam", work.learning_rate, beta_1=work.beta_1, beta_2=work.beta_2, epsilon=work.epsilon
    )
    batches = itertools.cycle(
        [
            (
                features(tf, source),
                features(tf, target[:, :-1]) | {"ids_out": tf.constant(target[:, 1:], tf.int64)},
            )
            for source, target in common.training_batches(work)
        ]
    )
    train = tf.function(lambda source, target: model.train(source, target, adam))
    return lambda: float(train(*next(batches)))


def translation(work, args):
    tf, _, model = transformer(work, args)
    source = features(tf, common.source_ids(work, args.sentences))
    infer = tf.function(model.infer)

    def request():
        outputs = infer(source)
        outputs["tokens"].numpy()
        return int(outputs["length"].numpy().min())

    return request


if __name__ == "__main__":
    common.run_peer(
        "opennmt_tf",
        ["OpenNMT-tf", "tensorflow"],
        {"training": training, "translation": translation},
        ("float32",),
        ("default", "xla"),
    )
