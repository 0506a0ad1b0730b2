"""Measures a corpus larger than memory: trainers.prepare of generated pairs, then batches from its records."""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks import common
from benchmarks.input_pipeline import generated_files, read


def main(argv=None) -> dict:
    parser = common.parser("records", __doc__, dtypes=())
    add = parser.add_argument
    add("--lines", type=int, default=5_000_000, help="pairs of generated text (5,000,000)")
    add("--batch-tokens", type=int, default=25_000, help="tokens per side of a batch (25,000)")
    add("--seconds", type=float, default=60, help="seconds to read (60)")
    add("--first", type=int, default=0, help="index of the first batch (0)")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    args.dtype = "int32"
    work = common.WORKS[args.config]
    files, folder = generated_files(work, args.lines, args.work), args.work / f"records-{work.vocab_size}-{args.lines}"
    prepare = ["--train", *map(str, files), "--to", str(folder), "--vocab-size", str(work.vocab_size)]
    began = time.perf_counter()
    command = [sys.executable, "-m", "trainers.prepare", *prepare, "--sample", "200000"]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, stdout=2)
    preparing = time.perf_counter() - began

    common.prepare_tensorflow(args, inter_threads=args.threads)
    from tf_transformer.data import datasets as data
    from tf_transformer.data.batches import Batches
    from tf_transformer.extensions.records.records import Records

    began = time.perf_counter()
    records = Records(folder)
    corpus = Batches(records.blocks(), args.batch_tokens)
    batches = iter(data.dataset(lambda: corpus.since(args.first)))
    next(batches)
    first = time.perf_counter() - began
    clock, cpu, source_tokens, target_tokens = read(batches, args.seconds)
    (seconds,) = clock.seconds()
    tokens = source_tokens + target_tokens
    return common.say(
        "records",
        "tf_transformer",
        args,
        ["tf-transformer", "tensorflow", "tensorflow-text"],
        tokens_per_second=round(tokens / seconds, 1),
        cpu_seconds_per_million=round(cpu * 1e6 / tokens, 2),
        first_milliseconds=round(first * 1e3, 1),
        prepare_seconds=round(preparing, 1),
        others_cores=round(clock.others(), 2),
        pairs=corpus.summary().pairs,
        bytes=sum(shard["bytes"] for shard in records.shards),
        batch_tokens=args.batch_tokens,
    )


if __name__ == "__main__":
    main()
