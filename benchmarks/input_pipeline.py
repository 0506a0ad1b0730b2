"""Batches from text files, tokenized on the fly, as training reads them: tokens a second without a model."""

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
    add("--batch-tokens", type=int, default=25_000, help="tokens a side of a batch (25,000)")
    add("--seconds", type=float, default=10, help="how long to read (10)")
    add("--training-rate", type=float, help="target tokens/s that training consumes, to compare with")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    args.dtype = "int32"
    work = common.WORKS[args.config]

    tf = common.prepare_tensorflow(args, inter_threads=args.threads)
    import tf_transformer as tt

    files = args.text or generated_files(work, args.lines, args.work)
    tokenizer = tt.Tokenizer.load(tokenizer_path(work, args.work))
    batches = iter(tt.data.text_pairs(*files, tokenizer, args.batch_tokens, repeat=True))
    began = time.perf_counter()
    next(batches)  # waits until the lines that are shuffled have been read
    clock, cpu, source_tokens, target_tokens = common.Clock(), time.process_time(), 0, 0
    clock.tick()
    while not target_tokens or time.perf_counter() < clock.stamps[0] + args.seconds:
        (source, _), target = next(batches)
        source_tokens += int(tf.math.count_nonzero(source))
        target_tokens += int(tf.math.count_nonzero(target))
    clock.tick()
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
        cpu_seconds_per_million=round((time.process_time() - cpu) * 1e6 / target_tokens, 2),
        first_milliseconds=round((clock.stamps[0] - began) * 1e3, 1),
        others_cores=round(clock.others(), 2),
        text=[str(file) for file in files] if args.text else "generated",
        batch_tokens=args.batch_tokens,
        **ratio,
    )


def generated_files(work, lines: int, folder: Path) -> list[Path]:
    """Parallel text that was generated: the second file has the first one's lines in reverse."""
    paths = [folder / f"text-{work.vocab_size}-{lines}.{side}" for side in ("source", "target")]
    if not all(path.exists() for path in paths):
        print(f"generating {lines:,} pairs of sentences ...", file=sys.stderr)
        text = list(common.generated_text(work.vocab_size, lines))
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text("\n".join(text) + "\n", encoding="utf-8")
        paths[1].write_text("\n".join(" ".join(reversed(line.split())) for line in text) + "\n", encoding="utf-8")
    return paths


if __name__ == "__main__":
    main()
