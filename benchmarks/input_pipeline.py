"""Measures batches from tokenized text files, as training reads them: tokens/s without a model."""

import sys
import time
from pathlib import Path

from benchmarks import common
from benchmarks.translation import tokenizer_path


def main(argv=None) -> dict:
    parser = common.parser("input_pipeline", __doc__, dtypes=())
    add = parser.add_argument
    add("--text", nargs=2, type=Path, metavar=("SOURCE", "TARGET"), help="parallel text (generated)")
    add("--lines", type=int, default=100_000, help="pairs of generated text (100,000)")
    add("--batch-tokens", type=int, default=25_000, help="tokens per side of a batch (25,000)")
    add("--seconds", type=float, default=10, help="how long to read (10)")
    add("--training-rate", type=float, help="target tokens/s that training consumes, to compare with")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    args.dtype = "int32"
    work = common.WORKS[args.config]

    common.prepare_tensorflow(args, inter_threads=args.threads)
    import tf_transformer as tt

    files = args.text or generated_files(work, args.lines, args.work)
    tokenizer = tt.Tokenizer.load(tokenizer_path(work, args.work))
    batches = iter(tt.data.text_pairs(*files, tokenizer, args.batch_tokens, repeat=True))
    began = time.perf_counter()
    next(batches)  # waits until the text is tokenized
    waited = time.perf_counter() - began
    clock, cpu, source_tokens, target_tokens = read(batches, args.seconds)
    (seconds,) = clock.seconds()
    rate = target_tokens / seconds
    ratio = {"times_training": round(rate / args.training_rate, 1)} if args.training_rate else {}
    return common.say(
        "input_pipeline",
        "tf_transformer",
        args,
        ["tf-transformer", "tensorflow", "tensorflow-text"],
        tokens_per_second=round(rate, 1),
        source_tokens_per_second=round(source_tokens / seconds, 1),
        cpu_seconds_per_million=round(cpu * 1e6 / target_tokens, 2),
        first_milliseconds=round(waited * 1e3, 1),
        others_cores=round(clock.others(), 2),
        text=[str(file) for file in files] if args.text else "generated",
        batch_tokens=args.batch_tokens,
        **ratio,
    )


def read(batches, seconds: float):
    """Reads batches for a number of seconds.

    Returns:
        A `common.Clock` that ticked before and after, processor seconds, and the numbers of source and target tokens.
    """
    import tensorflow as tf

    clock, cpu, source_tokens, target_tokens = common.Clock(), time.process_time(), 0, 0
    clock.tick()
    while not target_tokens or time.perf_counter() < clock.stamps[0] + seconds:
        (source, _), target = next(batches)
        source_tokens += int(tf.math.count_nonzero(source))
        target_tokens += int(tf.math.count_nonzero(target))
    clock.tick()
    return clock, time.process_time() - cpu, source_tokens, target_tokens


def generated_files(work, lines: int, folder: Path) -> list[Path]:
    """Writes parallel text line by line. The second file has the words of the first one's lines in reverse."""
    paths = [folder / f"text-{work.vocab_size}-{lines}.{side}" for side in ("source", "target")]
    if not all(path.exists() for path in paths):
        print(f"generating {lines:,} pairs of sentences ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        halves = [path.with_name(f"{path.name}.half") for path in paths]
        with open(halves[0], "w", encoding="utf-8") as source, open(halves[1], "w", encoding="utf-8") as target:
            for line in common.generated_text(work.vocab_size, lines):
                source.write(line + "\n")
                target.write(" ".join(reversed(line.split())) + "\n")
        for half, path in zip(halves, paths, strict=True):
            half.rename(path)
    return paths


if __name__ == "__main__":
    main()
