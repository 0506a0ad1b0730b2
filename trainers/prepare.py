"""Tokenize a large corpus once, into shards of ids that tf-transformer translation --prepared reads.

What is there already is kept: a program that was stopped goes on when started again with the same options. With
--workers many processes share the work, with --runner many machines, on Apache Beam; the files are the same.
"""

import argparse
import sys
import time
from typing import Any

from .command import add_tfds_options, add_vocabulary_kind, as_path, load_backend, options, positive, run_program
from .pipelines import add_pipeline_options, check_options, load_beam, processes, run_pipeline, split_options


def main(argv: list[str] | None = None) -> None:
    parser = options("prepare", __doc__)
    add = parser.add_argument
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, plain or .gz")
    add_tfds_options(add)
    add("--parquet", metavar="GLOB", help="Parquet files instead, e.g. 'corpus/*.parquet'")
    add("--columns", nargs=2, metavar=("SOURCE", "TARGET"), help="their columns (source target)")
    add("--to", type=as_path, required=True, metavar="DIR", help="where the records go")
    pretrained = "take the tokenizer of a model to fine-tune: a run, a SavedModel, a checkpoint"
    add("--from", dest="start", metavar="MODEL", help=pretrained)
    add("--vocab-size", type=positive, metavar="N", help="of the shared vocabulary (37,000)")
    add_vocabulary_kind(add)
    given = "take this vocabulary: a tokenizer.model, e.g. of a run, or another SentencePiece model"
    add("--tokenizer", type=as_path, dest="tokenizer_file", metavar="FILE", help=given)
    sample = "sentences to learn the vocabulary from (1,000,000)"
    add("--sample", type=positive, default=1_000_000, metavar="N", help=sample)
    add("--skip-bad-lines", action="store_true", help="leave out empty, over-long and invalid lines")
    filters = "pairs to drop: duplicates, identical"
    add("--filter", nargs="+", default=[], metavar="NAME[=VALUE]", help=filters)
    add_pipeline_options(parser.add_argument_group("many workers").add_argument)
    own, beams = split_options(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(own)
    if [args.train, args.tfds, args.parquet].count(None) != 2:
        parser.error("expected one of --train SOURCE TARGET, --tfds NAME and --parquet GLOB")
    if args.start and args.tokenizer_file:
        parser.error("--from: expected no --tokenizer with it, since the model has its own")
    for option, taken in (("--from", args.start), ("--tokenizer", args.tokenizer_file)):
        if taken and (args.vocab_size or args.tokenizer):
            parser.error(f"{option}: expected no --vocab-size and no --vocab-kind with it, since nothing is learned")
    if args.skip_bad_lines and not args.train:
        parser.error("--skip-bad-lines: expected --train beside it")
    if args.columns and not args.parquet:
        parser.error("--columns: expected --parquet beside it")
    check_options(args.workers, args.runner, beams)
    load_backend()  # of the tokenizers of pretrained models
    import tf_transformer as tt

    work = tt.Preparation(source_of(args), args.to, tt.Filters.parse(args.filter))
    if args.runner:
        load_beam()
    tokenizer = tokenizer_of(args.start) if args.start else None
    if args.tokenizer_file:
        from tf_transformer.models.families import load_tokenizer

        tokenizer = load_tokenizer(args.tokenizer_file)
    with work.locked():
        prepare(args, work, beams, tokenizer)


def prepare(args: argparse.Namespace, work: Any, beams: list[str], tokenizer: Any) -> None:
    """Learn a vocabulary, unless there is a tokenizer, and take the steps of a `Preparation`: in a pipeline, in
    processes or in this one."""
    import tf_transformer as tt
    from tf_transformer.data.batches import Batches
    from tf_transformer.data.records import SHARD_LINES, Records
    from tf_transformer.models.families import load_tokenizer

    folder = work.folder
    parts = work.source.parts(SHARD_LINES, folder)
    count = sum(part.count for part in parts)
    if not tokenizer and (folder / "tokenizer.model").exists():
        tokenizer = load_tokenizer(folder / "tokenizer.model")
        if args.vocab_size not in (None, tokenizer.vocab_size):
            raise tt.BadInput(f"--vocab-size: expected {tokenizer.vocab_size}, that of {folder}; got {args.vocab_size}")
    if not tokenizer:
        size = args.vocab_size or 37_000
        print(f"{count:,} pairs; learning a vocabulary of {size:,}", flush=True)
        texts = work.source.sample(parts, args.sample // 2)
        tokenizer = tt.Tokenizer.learn_from(
            texts, size, args.tokenizer or "bpe", args.sample, symbols=work.source.symbols
        )
    began = time.monotonic()

    def progress() -> str:
        done = sum(1 for _ in folder.glob("shard-*"))
        return f"  {done:,} of {len(parts):,} shards, {time.monotonic() - began:,.0f} s"

    if args.runner:
        run_pipeline(args.runner, beams, lambda pipeline: pipeline | tt.beam.Prepare(work, parts, tokenizer))
    elif (args.workers or 1) > 1:
        with processes(args.workers, folder / "log", progress) as each:
            work.run(parts, tokenizer, each)
    else:

        def report(shard: dict[str, Any]) -> None:
            print(f"  {shard['shard']}: {sum(shard['lengths']):,} pairs, {time.monotonic() - began:,.0f} s", flush=True)

        work.run(parts, tokenizer, report=report)
    records = Records(folder)
    found = Batches(records.blocks(), batch_tokens=25_000).summary()
    print(f"{args.to}: {found.pairs:,} pairs, {found.source_tokens:,} + {found.target_tokens:,} tokens, ", end="")
    print(f"{found.skipped:,} too long or bad; {time.monotonic() - began:,.0f} s")
    if records.filtered:
        print("left out: " + ", ".join(f"{number:,} {name}" for name, number in records.filtered.items()))
    of_model = f"--from {args.start} " if args.start else ""
    print(f"now: tf-transformer translation {of_model}--prepared {args.to} --dev ...")


def tokenizer_of(model: str) -> Any:
    """The tokenizer of a model that translates, whose languages are known."""
    import tf_transformer as tt

    tokenizer = tt.Translator.from_pretrained(model).tokenizer
    if tokenizer.controls:
        raise tt.BadInput(f"--from {model}: expected a model that translates, got a parser")
    tokenizer.spoken()
    return tokenizer


def source_of(args: argparse.Namespace) -> Any:
    """Where the pairs come from."""
    from tf_transformer.data import sources
    from tf_transformer.utils.files import user_path

    if args.tfds:
        return sources.TfdsSource(args.tfds, "train", tuple(args.languages), args.tfds_dir)
    if args.parquet:
        return sources.ParquetSource(
            str(user_path(args.parquet).absolute()), tuple(args.columns or ("source", "target"))
        )
    source, target = (str(user_path(file).absolute()) for file in args.train)
    return sources.TextSource(source, target, args.skip_bad_lines)


if __name__ == "__main__":
    run_program(main)
