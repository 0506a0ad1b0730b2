"""A corpus larger than memory: trainers.prepare of generated pairs, then batches from its records, without a model."""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks import common


def main(argv=None) -> dict:
    parser = common.parser("records", __doc__, dtypes=())
    add = parser.add_argument
    add("--lines", type=int, default=5_000_000, help="pairs of generated text (5,000,000)")
    add("--batch-tokens", type=int, default=25_000, help="tokens a side of a batch (25,000)")
    add("--seconds", type=float, default=60, help="how long to read (60)")
    add("--first", type=int, default=0, help="the batch to begin with (0)")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    args.dtype = "int32"
    work = common.WORKS[args.config]
    files, folder = generated_files(work, args.lines, args.work), args.work / f"records-{work.vocab_size}-{args.lines}"
    prepare = ["--train", *map(str, files), "--to", str(folder), "--vocab-size", str(work.vocab_size)]
    began = time.perf_counter()
    command = [sys.executable, "-m", "trainers.prepare", *prepare, "--sample", "200000"]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, stdout=sys.stderr)
    preparing = time.perf_counter() - began

    tf = common.prepare_tensorflow(args, inter_threads=args.threads)
    import tf_transformer as tt

    began = time.perf_counter()
    records = tt.records.Records(folder)
    batches = iter(records.batches(args.batch_tokens, first=args.first))
    next(batches)
    first = time.perf_counter() - began
    clock, cpu, source_tokens, target_tokens = common.Clock(), time.process_time(), 0, 0
    clock.tick()
    while not target_tokens or time.perf_counter() < clock.stamps[0] + args.seconds:
        (source, _), target = next(batches)
        source_tokens += int(tf.math.count_nonzero(source))
        target_tokens += int(tf.math.count_nonzero(target))
    clock.tick()
    (seconds,) = clock.seconds()
    return common.say(
        "records",
        "tf_transformer",
        args,
        ["tf-transformer", "tensorflow", "tensorflow-text"],
        tokens_per_second=round((source_tokens + target_tokens) / seconds, 1),
        cpu_seconds_per_million=round((time.process_time() - cpu) * 1e6 / (source_tokens + target_tokens), 2),
        first_milliseconds=round(first * 1e3, 1),
        prepare_seconds=round(preparing, 1),
        others_cores=round(clock.others(), 2),
        pairs=records.summary(args.batch_tokens).pairs,
        bytes=sum(shard["bytes"] for shard in records.shards),
        batch_tokens=args.batch_tokens,
    )


def generated_files(work, lines: int, folder: Path) -> list[Path]:
    """Parallel text, written line by line: the second file has the first one's lines in reverse."""
    paths = [folder / f"large-{work.vocab_size}-{lines}.{side}" for side in ("source", "target")]
    if not all(path.exists() for path in paths):
        print(f"generating {lines:,} pairs of sentences ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        halves = [path.with_name(f"{path.name}.half") for path in paths]
        with open(halves[0], "w") as source, open(halves[1], "w") as target:
            for line in common.generated_text(work.vocab_size, lines):
                source.write(line + "\n")
                target.write(" ".join(reversed(line.split())) + "\n")
        for half, path in zip(halves, paths, strict=True):
            half.rename(path)
    return paths


if __name__ == "__main__":
    main()
