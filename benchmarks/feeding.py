"""Measures whether batches keep up: `model.fit` on batches as they are made, and on the same batches made before."""

import dataclasses
import itertools
import time

from benchmarks import common
from benchmarks.training import compiled_model

# Of the logarithm of lengths. As in WMT 2014, most pairs have 15 to 40 tokens.
MEAN, SPREAD = 3.2, 0.5


def main(argv=None) -> dict:
    parser = common.parser("feeding", __doc__)
    add = parser.add_argument
    add("--text", type=int, default=1_000_000, help="pairs of random tokens (1,000,000)")
    add("--max-length", type=int, default=64, help="maximum tokens per side (64)")
    add("--batch-tokens", type=int, default=25_000, help="tokens per side of a batch (25,000)")
    add("--steps", type=int, default=100, help="timed batches, three times each (100)")
    args = parser.parse_args(argv)
    work = dataclasses.replace(common.WORKS[args.config], length=args.max_length)
    common.prepare(args)
    import keras
    import numpy as np

    from tf_transformer.data.batches import Batches
    from tf_transformer.data.ids import Batch, Block, Ids, Side

    rng = np.random.default_rng(common.SEED)
    sides = []
    for _ in range(2):
        lengths = np.clip(np.exp(rng.normal(MEAN, SPREAD, args.text)), 1, args.max_length - 1).astype("int64")
        ids = rng.integers(common.FIRST_ID, work.vocab_size, lengths.sum()).astype("uint16")
        sides.append(Side.of(ids, lengths))
    text = Ids(*sides, np.arange(1, args.text + 1))
    batches = Batches([Block.of(text, args.max_length)], args.batch_tokens, common.SEED, fixed_shapes=True)
    model = compiled_model(work, args.dtype)

    def fit(source) -> float:
        """Returns the seconds of the timed steps. The loss is only read at the end."""
        if keras.backend.backend() == "tensorflow":  # Keras assumes the sizes of the first two batches
            from tf_transformer.data import datasets as data

            examples = data.dataset(lambda: source)
        else:
            examples = map(Batch.pair, source)
        began = time.perf_counter()
        model.fit(examples, steps_per_epoch=args.steps, verbose=0)
        return time.perf_counter() - began

    shapes = {}
    for number in range(min(len(batches), 2_000)):
        batch = batches[number]
        shapes.setdefault(batch.source.shape, batch)
    began = time.perf_counter()
    for batch in shapes.values():
        model.fit((batch.source, batch.target_in), batch.target_out, len(batch.source), shuffle=False, verbose=0)
    compiling = time.perf_counter() - began
    before = [batches[number] for number in range(args.steps)]
    fit(iter(before))
    ready, fresh = [], []
    for _ in range(3):
        ready.append(fit(iter(before)))
        fresh.append(fit(itertools.islice(batches.since(), args.steps)))
    began = time.perf_counter()
    for number in range(args.steps):
        batches[number]
    making = time.perf_counter() - began
    tokens = sum(int(np.count_nonzero(batch.target_out)) for batch in before)
    positions = sum(batch.target_out.size for batch in before)
    return common.say(
        "feeding",
        "tf_transformer",
        args,
        ["tf-transformer", "keras", keras.backend.backend()],
        tokens_per_second=round(tokens / sorted(fresh)[1]),
        tokens_per_second_ready=round(tokens / sorted(ready)[1]),
        share_of_positions=round(tokens / positions, 3),
        seconds=[round(seconds, 3) for seconds in fresh],
        seconds_ready=[round(seconds, 3) for seconds in ready],
        making_tokens_per_second=round(tokens / making),
        shapes=len(shapes),
        compiling_seconds=round(compiling, 1),
        loss=round(float(model.evaluate(*before[0].pair(), verbose=0, return_dict=True)["loss"]), 3),
    )


if __name__ == "__main__":
    main()
