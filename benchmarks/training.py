"""Measures training by `model.fit`: target tokens/s of whole steps, and the memory of a step."""

import os

from benchmarks import common


def main(argv=None) -> dict:
    parser = common.parser("training", __doc__)
    common.add_training(parser)
    add = parser.add_argument
    add("--inter-threads", type=int, default=1, help="concurrent operations, TensorFlow only (1)")
    common.add_step_sizes(parser)
    add("--stock-adam", action="store_true", help="keras.optimizers.Adam instead of the trainers' Adam")
    add("--metrics", action="store_true", help="with the trainers' metrics")
    add("--jit", action="store_true", help="compiled by XLA")
    add("--num-microbatches", type=int, default=1, help="parts of a step's pairs, TensorFlow only (1)")
    args = parser.parse_args(argv)
    work = common.with_step_sizes(common.WORKS[args.config], args)

    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        common.prepare_tensorflow(args, args.inter_threads)
    elif args.num_microbatches > 1:
        parser.error(f"--num-microbatches: expected 1 but on TensorFlow, got {args.num_microbatches}")
    else:
        common.prepare(args)
    steps = args.warmup + args.steps
    clock, model = train(work, args.dtype, steps, args.stock_adam, args.metrics, args.jit, args.num_microbatches)
    import keras

    backend, more = keras.backend.backend(), {}
    if backend == "tensorflow":
        more["step_mib"] = round(common.request_mib(lambda: fit(model, common.training_batches(work, 1))), 1)
    return common.report(
        "training",
        "tf_transformer",
        args,
        clock,
        work.pairs * work.length,
        ["tf-transformer", "keras", backend],
        backend=backend,
        pairs=work.pairs,
        length=work.length,
        parameters=model.count_params(),
        adam="stock" if args.stock_adam else "trainers",
        metrics=args.metrics,
        jit=args.jit,
        num_microbatches=args.num_microbatches,
        **more,
    )


def train(work, dtype, steps, stock_adam=False, metrics=False, jit=False, num_microbatches=1):
    """Trains a new model for a number of steps.

    Returns:
        A `common.Clock` that ticked before the first step and after each, and the model.
    """
    import keras

    model = compiled_model(work, dtype, stock_adam, metrics, jit, num_microbatches)
    batches = common.training_batches(work)
    clock = common.Clock()

    class Ticks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])  # waits for the step if the backend does not
            clock.tick()

    clock.tick()
    fit(model, [batches[i % len(batches)] for i in range(steps)], callbacks=[Ticks()])
    return clock, model


def compiled_model(work, dtype, stock_adam=False, metrics=False, jit=False, num_microbatches=1):
    """Returns our model of this work's sizes, compiled with the paper's schedule and loss."""
    import keras

    import tf_transformer as tt

    keras.utils.set_random_seed(common.SEED)
    keras.config.set_dtype_policy("float32" if dtype == "float32" else f"mixed_{dtype}")
    model = model_of(work)
    model.num_microbatches = num_microbatches
    adam = keras.optimizers.Adam if stock_adam else tt.Adam
    schedule = tt.WarmupSchedule(work.d_model)
    model.compile(
        optimizer=adam(schedule, beta_1=work.beta_1, beta_2=work.beta_2, epsilon=work.epsilon),
        loss=tt.SmoothedCrossEntropy(work.label_smoothing),
        metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()] if metrics else None,
        jit_compile=True if jit else "auto",
    )
    return model


def fit(model, batches, **options):
    """Makes one step for each batch."""
    import numpy as np

    source, target = (np.concatenate(side) for side in zip(*batches, strict=True))
    model.fit((source, target[:, :-1]), target[:, 1:], len(batches[0][0]), shuffle=False, verbose=0, **options)


def model_of(work):
    """Returns our model of this work's sizes, with random weights."""
    import tf_transformer as tt
    from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer

    config = tt.TransformerConfig(
        work.num_layers,
        work.d_model,
        work.d_ff,
        work.num_heads,
        dropout=work.dropout,
        label_smoothing=work.label_smoothing,
        vocab_size=work.vocab_size,
    )
    if work.marian:
        decoder = {
            "decoder_d_ff": work.d_ff,
            "num_decoder_heads": work.num_heads,
            "num_decoder_layers": work.num_layers,
        }
        config = MarianConfig(**config.to_dict() | decoder | {"activation": "swish"})
    model = (MarianTransformer if work.marian else tt.Transformer)(config)
    model.build()
    return model


if __name__ == "__main__":
    main()
