"""Translate a file, or standard input, line by line, or as a document, with a SavedModel, a LiteRT or an ONNX export,
a run or a checkpoint; or many files, with --input, with an export on Apache Beam.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tf_transformer.extensions.documents.document import FORMATS
from tf_transformer.utils.files import lines_in, lines_of, open_text, user_path, write_text

from .command import add_call_options, answered, chosen, engine, of_calls, options, positive, run_program
from .pipelines import (
    add_pipeline_options,
    check_options,
    load_beam,
    processes,
    run_pipeline,
    split_options,
    threads_of_a_worker,
)

ONE_FILE = ("batch_size", "patience", "extra_length", "max_source_length")  # options that --input does not take
MANY_FILES = ("workers", "runner", "lines", "batch_bytes", "gzip")  # those that it does


def main(argv: list[str] | None = None) -> None:
    parser = options("translate", __doc__)
    add = parser.add_argument
    what = "a folder, e.g. savedmodels/demo/1, of savedmodels/demo the newest; or a name on the Hugging Face hub"
    add("model", help=what)
    add("source", nargs="?", default="-", help="a text file, plain or .gz; - is standard input (-)")
    where = "where the translations go (standard output); with --input a PREFIX, PREFIX-00000-of-00007.txt"
    add("--output", metavar="FILE", help=where)
    add("--scores", action="store_true", help="a score and a tab before each translation")
    add("--json", action="store_true", help="JSON lines, with text, score and flags")
    add("--n-best", type=positive, metavar="N", help="translations of each line, best first, with --json (1)")
    what = f"the text is one document, {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not sentences ({FORMATS[0]})"
    add("--document", nargs="?", const=FORMATS[0], choices=FORMATS, metavar="FORMAT", help=what)
    add("--batch-size", type=positive, metavar="N", help="sentences a batch (32)")
    add_call_options(add)
    bulk = parser.add_argument_group('many files, with Apache Beam (pip install "tf-transformer[beam]")')
    bulk.add_argument("--input", nargs="+", metavar="GLOB", help="text files, plain or .gz, or patterns of their names")
    add_pipeline_options(bulk.add_argument)
    bulk.add_argument("--lines", type=int, metavar="N", help="lines a file of the output (10000)")
    bulk.add_argument("--batch-bytes", type=int, metavar="N", help="rows a batch times bytes of the longest (8192)")
    bulk.add_argument("--gzip", action="store_true", default=None, help="compress the output")
    own, beams = split_options(sys.argv[1:] if argv is None else argv)
    args = parser.parse_intermixed_args(own)
    if args.output == "":
        parser.error("--output: expected a path, got an empty one")
    if args.json and args.scores:
        parser.error("--scores: expected --json without it, which has scores")
    if args.n_best and not args.json:
        parser.error("--n-best: expected --json with it")
    if args.document and (args.json or args.scores):
        parser.error("--document: expected neither --scores nor --json with it")
    others = (*ONE_FILE, "document") if args.input else MANY_FILES
    if given := [*(f"--{name.replace('_', '-')}" for name in chosen(vars(args), others)), *beams * (not args.input)]:
        parser.error(f"{given[0]}: expected {'no --input' if args.input else '--input'} with it")
    ending = ".jsonl" if args.json else ".tsv" if args.scores else ".txt"
    if not args.input:
        translate_file(args, ending)
        return
    if args.source != "-" or not args.output:
        parser.error("--input: expected --output PREFIX with it, and no other file")
    load_beam()
    translate_files(args, beams, ending)


def translate_file(args: argparse.Namespace, ending: str) -> None:
    """Translate one file, or standard input, in this process."""
    if args.document:
        translate_document(args)
        return
    lines = lines_in(sys.stdin.buffer) if args.source == "-" else list(lines_of(args.source))
    model = engine(args.model, vars(args), batch_size=args.batch_size or 32)
    replies = answered(model, lines, args.n_best, **of_calls(vars(args)))
    written = (f"{reply.written(ending, bool(args.n_best))}\n" for reply in replies)
    try:
        if args.output:
            write_lines(args.output, written)
            return
        for line in written:  # as they come
            sys.stdout.buffer.write(line.encode())
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:  # another start would begin anew
        print("\nstopped", file=sys.stderr)
        sys.exit(130)


def translate_document(args: argparse.Namespace) -> None:
    """Translate one file, or standard input, as a document."""
    with contextlib.nullcontext(sys.stdin.buffer) if args.source == "-" else open_text(args.source) as file:
        text = file.read()
    model = engine(args.model, vars(args), batch_size=args.batch_size or 32)
    written = model.document(text, args.document, **of_calls(vars(args)))
    if args.output:
        write_text(args.output, written)
    else:
        sys.stdout.buffer.write(written.encode())


def write_lines(output: str, lines: Iterable[str]) -> None:
    """Write lines into a file. If it ends too early, by Ctrl-C, a signal, a full disk or an error, OUTPUT.partial keeps
    the lines that were written, and a message says so."""
    target = Path(os.path.realpath(user_path(output)))
    partial = target.with_name(f"{target.name}.partial")

    def rescue(written: Path) -> None:
        # A full disk has no room for a copy, so the file itself is kept, without an incomplete last line.
        with contextlib.suppress(OSError):
            with open(written, "rb+") as file:
                lengths = [len(line) for line in file if line.endswith(b"\n")]
                file.truncate(sum(lengths))
            if lengths:
                os.replace(written, partial)
                print(f"\nthe first {len(lengths):,} lines are in {partial}", file=sys.stderr)

    write_text(output, lines, rescue)
    if partial.is_file():
        partial.unlink()  # of an attempt before


def translate_files(args: argparse.Namespace, beams: list[str], ending: str) -> None:
    """Translate many files into shards; those that are there are kept."""
    import tf_transformer as tt
    from tf_transformer.extensions.beam import shards as bulk
    from tf_transformer.utils.folders import model_folder

    given = vars(args)
    check_options(args.workers, args.runner, beams)
    threads = None if args.runner else threads_of_a_worker(args.workers)
    method = tt.beam.TranslationSettings(
        str(model_folder(args.model).absolute()),
        threads=threads,
        options=of_calls(given),
        **chosen(given, ("n_best", "batch_bytes")),
    )
    ending += ".gz" if args.gzip else ""
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
