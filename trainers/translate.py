"""Translate a file, or standard input, line by line, with a SavedModel, a LiteRT export, a run or a checkpoint; or many
files, with --input, with an export on Apache Beam.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tf_transformer.base.files import lines_in, lines_of, write_text
from tf_transformer.text.languages import LANGUAGES

from .command import add_languages, add_search_options, chosen, engine, in_chunks, options, positive, run_program
from .pipelines import (
    add_pipeline_options,
    check_options,
    load_beam,
    processes,
    run_pipeline,
    split_options,
    threads_of_a_worker,
)


def main(argv: list[str] | None = None) -> None:
    parser = options("translate", __doc__)
    what = "a folder, e.g. savedmodels/demo/1, of savedmodels/demo the newest; or a name on the Hugging Face hub"
    parser.add_argument("model", help=what)
    parser.add_argument("source", nargs="?", default="-", help="a text file, plain or .gz; - is standard input (-)")
    parser.add_argument(
        "--output", help="where the translations go (standard output); with --input a PREFIX, PREFIX-00000-of-00007.txt"
    )
    parser.add_argument("--batch-size", type=positive, default=32, help="sentences a batch (32)")
    add_languages(parser.add_argument)
    bulk = parser.add_argument_group('many files, with Apache Beam (pip install "tf-transformer[beam]")')
    bulk.add_argument("--input", nargs="+", metavar="GLOB", help="text files, plain or .gz, or patterns of their names")
    add_pipeline_options(bulk.add_argument)
    bulk.add_argument("--lines", type=int, metavar="N", help="lines a file of the output (10000)")
    bulk.add_argument("--batch-bytes", type=int, metavar="N", help="rows a batch times bytes of the longest (8192)")
    bulk.add_argument("--gzip", action="store_true", default=None, help="compress the output")
    bulk.add_argument("--json", action="store_true", default=None, help="JSON lines, with score and flags")
    fixed = ("patience", "extra_length", "max_source_length")  # by the export
    search = add_search_options(bulk.add_argument, ("max_length", "n_best"), fixed)
    own, beams = split_options(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(own)
    if args.output == "":
        parser.error("--output: expected a path, got an empty one")
    if args.input is None:
        bulk_only = ("workers", "runner", "lines", "batch_bytes", "gzip", "json", *search)
        if given := [*chosen(vars(args), bulk_only), *beams]:
            parser.error(f"{given[0]}: expected --input with it")
        translate_file(args)
    else:
        if args.source != "-" or not args.output:
            parser.error("--input: expected --output PREFIX with it, and no other file")
        if args.n_best and not args.json:
            parser.error("--n-best: expected --json with it")
        load_beam()
        translate_files(args, beams, search)


def translate_file(args: argparse.Namespace) -> None:
    """Translate one file, or standard input, in this process."""
    model = engine(args.model, vars(args), batch_size=args.batch_size)
    lines = list(lines_in(sys.stdin.buffer) if args.source == "-" else lines_of(args.source))
    translated = (f"{reply.line}\n" for reply in in_chunks(model, lines))
    if args.output:
        write_text(args.output, translated)
    else:
        sys.stdout.buffer.writelines(line.encode() for line in translated)


def translate_files(args: argparse.Namespace, beams: list[str], search: list[str]) -> None:
    """Translate many files into shards; those that are there are kept. `search` names its options."""
    import tf_transformer as tt
    from tf_transformer.base.folders import model_folder
    from tf_transformer.beam import shards as bulk

    given = vars(args)
    check_options(args.workers, args.runner, beams)
    threads = None if args.runner else threads_of_a_worker(args.workers)
    method = tt.beam.TranslationSettings(
        str(model_folder(args.model).absolute()),
        threads=threads,
        options=chosen(given, [*LANGUAGES, *(name for name in search if name != "n_best")]),
        **chosen(given, ("n_best", "batch_bytes")),
    )
    ending = (".jsonl" if args.json else ".txt") + (".gz" if args.gzip else "")
    work = tt.beam.BulkJob(tuple(args.input), args.output, method, ending=ending, **chosen(given, ("lines",)))
    began = time.monotonic()
    with work.opened() as shards:
        missing = [shard for shard in shards if not Path(shard.path).exists()]

        def progress() -> str:
            done = sum(Path(shard.path).exists() for shard in missing)
            return f"{done:,} of {len(missing):,} files, {time.monotonic() - began:.0f} s"

        def build(pipeline: Any) -> None:
            import apache_beam as beam

            _ = pipeline | beam.Create(missing) | tt.beam.TranslateShards(method)

        if missing and args.runner:
            run_pipeline(args.runner, beams, build)
        elif missing:
            with processes(args.workers or 1, work.folder / "log", progress) as each:
                each(bulk.ShardWorker(method), missing)
    lines, seconds = sum(shard.lines.count for shard in missing), time.monotonic() - began
    kept = f"; {len(shards) - len(missing):,} were there" if len(missing) < len(shards) else ""
    print(f"{len(missing):,} files, {lines:,} lines in {seconds:.0f} s, {lines / seconds:.0f} a second{kept}")


if __name__ == "__main__":
    run_program(main)
