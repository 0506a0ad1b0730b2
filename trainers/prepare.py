"""Tokenize a large corpus once, into shards of ids that tf-transformer translation --prepared reads.

Existing shards are kept: start a stopped program again with the same options to resume it. With --workers many
processes share the work, with --runner many machines, on Apache Beam. The files are the same.
"""

import argparse
import time
from typing import Any

import tf_transformer as tt
from tf_transformer.utils.files import user_path

from . import command
from .pipelines import add_pipeline_options, check_options, pipeline_on, processes, split_options


def arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parses and checks the options. Returns them, and those of Beam."""
    parser = command.options("prepare", __doc__)
    add = parser.add_argument
    command.add_corpus_options(add)
    add("--parquet", metavar="GLOB", help="Parquet files instead of --train, such as 'corpus/*.parquet'")
    add("--columns", nargs=2, metavar=("SOURCE", "TARGET"), help="columns of the Parquet files (source target)")
    add("--to", type=command.as_path, required=True, metavar="DIR", help="output directory")
    start = "use the tokenizer of this model, for fine-tuning it: a run, a SavedModel or a checkpoint"
    add("--from", dest="start", metavar="MODEL", help=start)
    add("--vocab-size", type=command.positive, metavar="N", help="size of the shared vocabulary (37,000)")
    command.add_vocabulary_kind(add)
    sample = "number of sentences to train the tokenizer on (1,000,000)"
    add("--sample", type=command.positive, default=1_000_000, metavar="N", help=sample)
    add_pipeline_options(parser.add_argument_group("many workers").add_argument)
    ours, beams = split_options(argv)
    args = parser.parse_args(ours)
    if [args.train, args.tfds, args.parquet, args.directions].count(None) != 3:
        parser.error("expected one of --train SOURCE TARGET, --tfds NAME, --parquet GLOB and --directions FILE")
    if args.directions and not (args.start or args.tokenizer_file):
        parser.error("--directions: expected --from or --tokenizer, of a multilingual model")
    if args.start and args.tokenizer_file:
        parser.error("--from: cannot be combined with --tokenizer, since the model has one")
    option = "--from" if args.start else "--tokenizer"
    if (args.start or args.tokenizer_file) and (args.vocab_size or args.tokenizer):
        parser.error(f"{option}: cannot be combined with --vocab-size or --vocab-kind")
    command.check_needs(parser, args, command.CORPUS_NEEDS | {"columns": ("parquet",)})
    check_options(args.workers, args.runner, beams)
    return args, beams


def main(argv: list[str] | None = None) -> None:
    args, beams = arguments(argv)
    command.load_backend()  # tokenizers of pretrained models need it
    filters = tt.Filters.parse(args.filter)
    start, tokenizer, directions, _ = command.opened(args, check=False)
    tokenizer, start = start.tokenizer if start else tokenizer, None  # frees the model
    if tokenizer:
        tokenizer.current_languages()  # raises an error if a multilingual model has no languages
    work = tt.Preparation(directions or source_of(args), args.to, filters)
    pipeline = pipeline_on(args.runner, beams)
    with work.locked():
        prepare(args, work, pipeline, tokenizer)


def prepare(args: argparse.Namespace, work: Any, pipeline: Any, tokenizer: Any) -> None:
    """Trains a tokenizer, unless there is one, and runs a `Preparation`: in a pipeline, in processes or in this one."""
    from tf_transformer.data.batches import Batches
    from tf_transformer.extensions.records.records import SHARD_LINES
    from tf_transformer.models.families import load_tokenizer

    folder = work.folder
    parts = work.source.parts(SHARD_LINES, folder)
    count = sum(part.count for part in parts)
    if not tokenizer and (folder / "tokenizer.model").exists():
        tokenizer = load_tokenizer(folder / "tokenizer.model")
        if args.vocab_size not in (None, tokenizer.vocab_size):
            raise tt.BadInput(f"--vocab-size: expected {tokenizer.vocab_size}, that of {folder}; got {args.vocab_size}")
        print(f"{count:,} pairs, with the tokenizer that {folder} has", flush=True)
    if not tokenizer:
        size = args.vocab_size or 37_000
        print(f"{count:,} pairs, training a tokenizer of {size:,} tokens", flush=True)
        texts = work.source.sample(parts, args.sample // 2)
        tokenizer = tt.Tokenizer.train_from_iterator(
            texts, size, args.tokenizer or "bpe", args.sample, user_defined_symbols=work.source.symbols
        )
    began = time.monotonic()

    def progress() -> str:
        done = sum(1 for _ in folder.glob("shard-*"))
        return f"  {done:,} of {len(parts):,} shards, {time.monotonic() - began:,.0f} s"

    def report(shard: dict[str, Any]) -> None:
        print(f"  {shard['shard']}: {sum(shard['lengths']):,} pairs, {time.monotonic() - began:,.0f} s", flush=True)

    if pipeline:
        with pipeline:
            _ = pipeline | tt.beam.Prepare(work, parts, tokenizer)
    elif (args.workers or 1) > 1:
        with processes(args.workers, folder / "log", progress) as each:
            work.run(parts, tokenizer, each)
    else:
        work.run(parts, tokenizer, report=report)
    records = tt.Records(folder)
    summary = Batches(records.blocks(), batch_tokens=25_000).summary()
    print(f"{args.to}: {summary.pairs:,} pairs, {summary.source_tokens:,} + {summary.target_tokens:,} tokens, ", end="")
    print(f"{summary.skipped:,} too long or bad; {time.monotonic() - began:,.0f} s")
    if records.filtered:
        print("dropped: " + ", ".join(f"{number:,} {name}" for name, number in records.filtered.items()))
    start = f"--from {args.start} " if args.start else ""
    dev = f"--directions {args.directions}" if args.directions else "--dev ..."
    print(f"now: tf-transformer translation {start}--prepared {args.to} {dev}")


def source_of(args: argparse.Namespace) -> Any:
    """Returns the source of the pairs."""
    if args.tfds:
        return tt.sources.TfdsSource(args.tfds, "train", tuple(args.languages or ("en", "de")), args.tfds_dir)
    if args.parquet:
        columns = tuple(args.columns or ("source", "target"))
        return tt.sources.ParquetSource(str(user_path(args.parquet).absolute()), columns)
    source, target = (str(user_path(file).absolute()) for file in args.train)
    return tt.sources.TextSource(source, target, args.skip_bad_lines)


if __name__ == "__main__":
    command.run_program(main)
