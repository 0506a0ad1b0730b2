"""Translate a file or standard input, line by line or as a document, with an export, a run or a checkpoint. With
--input, translate many files with an export, on Apache Beam.
"""

import argparse
import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import tf_transformer as tt
from tf_transformer.extensions.documents.document import FORMATS, READERS, decoded
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.turns import InTurns, Turns, pooled
from tf_transformer.utils.files import user_path, write_text
from tf_transformer.utils.lines import check_plain, lines_in, lines_of, open_text

from . import pipelines
from .command import add_call_options, answered, chosen, engine, of_calls, options, positive, run_program

ONE_FILE = ("batch_size", "patience", "extra_length", "max_source_length")  # options that exclude --input
MANY_FILES = ("runner", "lines", "batch_bytes", "gzip")  # options that need it
# By file extension: formats of documents, and what is none.
KINDS = {"html": "htm html xhtml", "xml": "svg tmx xlf xliff xml", "srt": "srt"}
UNSUPPORTED = """ass csv doc docx epub ftl ini ipynb json jsonl latex md odp ods odt pdf php po pot ppt pptx properties
resx rst rtf sbv ssa strings sub tex toml tsv ttml vtt xls xlsx yaml yml"""


def main(argv: list[str] | None = None) -> None:
    parser = options("translate", __doc__)
    add = parser.add_argument
    model = "directory, such as savedmodels/demo/1 or, for the newest version, savedmodels/demo, or a name on the Hub"
    add("model", help=model)
    add("source", nargs="?", default="-", help="text file, plain or .gz; - is standard input (-)")
    output = "output file (standard output), or with --input a PREFIX for PREFIX-00000-of-00007.txt"
    add("--output", metavar="FILE", help=output)
    add("--scores", action="store_true", help="print a score and a tab before each translation")
    add("--json", action="store_true", help="print JSON lines with text, score and flags")
    add("--n-best", type=positive, metavar="N", help="translations per line, best first, with --json (1)")
    what = f"translate the text as one document: {', '.join(FORMATS[:-1])} or {FORMATS[-1]} ({FORMATS[0]})"
    add("--document", nargs="?", const=False, choices=FORMATS, metavar="FORMAT", help=what)
    add("--batch-size", type=positive, metavar="N", help="sentences per batch (32)")
    add("--workers", type=positive, metavar="N", help="batches, or with --input files, at the same time (1)")
    add_call_options(add)
    add = parser.add_argument_group('many files, with Apache Beam (pip install "tf-transformer[beam]")').add_argument
    add("--input", nargs="+", metavar="GLOB", help="text files, plain or .gz, or patterns of their names")
    pipelines.add_runner(add)
    add("--lines", type=int, metavar="N", help="lines per output file (10000)")
    add("--batch-bytes", type=int, metavar="N", help="maximum batch size: rows times bytes of the longest (8192)")
    add("--gzip", action="store_true", default=None, help="compress the output")
    ours, beams = pipelines.split_options(argv)
    args = parser.parse_intermixed_args(ours)
    if args.output == "":
        parser.error("--output: expected a path, got an empty one")
    if args.output and not args.input and args.output.endswith(".gz"):
        parser.error(f"--output: expected a name without .gz, since one file is not compressed, got {args.output}")
    if args.json and args.scores:
        parser.error("--scores: cannot be combined with --json, which has scores")
    if args.n_best and not args.json:
        parser.error("--n-best: expected --json as well")
    if args.document is not None and (args.json or args.scores):
        parser.error("--document: cannot be combined with --scores or --json")
    excluded = (*ONE_FILE, "document") if args.input else MANY_FILES
    if wrong := [*(f"--{name.replace('_', '-')}" for name in chosen(vars(args), excluded)), *beams * (not args.input)]:
        parser.error(f"{wrong[0]}: {'cannot be combined with --input' if args.input else 'expected --input as well'}")
    if args.input and (args.source != "-" or not args.output):
        parser.error("--input: expected --output PREFIX as well, and no other file")
    ending = ".jsonl" if args.json else ".tsv" if args.scores else ".txt"
    if args.input:
        pipelines.load_beam()
        translate_files(args, beams, ending)
    elif args.document is not None:
        translate_document(args)
    else:
        translate_file(args, ending)


def opened(args: argparse.Namespace) -> Engine:
    """Opens the model, which runs as many batches at the same time as there are workers."""
    model = engine(args.model, vars(args), batch_size=args.batch_size or 32)
    model, workers = pooled(model, args.workers or 1)
    # Twice as many wait or run, so that no worker waits for another one's batch.
    return InTurns(model, Turns(workers), 2 * workers) if workers > 1 else model


def translate_file(args: argparse.Namespace, ending: str) -> None:
    """Translates one file, or standard input, in this process."""
    lines = lines_in(sys.stdin.buffer) if args.source == "-" else list(lines_of(args.source))
    model = opened(args)
    replies = answered(model, lines, args.n_best, **of_calls(vars(args)))
    written = (f"{reply.written(ending, bool(args.n_best))}\n" for reply in replies)
    try:
        if args.output:
            write_lines(args.output, written)
            return
        for line in written:
            sys.stdout.buffer.write(line.encode())
            sys.stdout.buffer.flush()  # Print each reply at once.
    except KeyboardInterrupt:  # without the advice to start again, which would not resume
        print("\nstopped", file=sys.stderr)
        sys.exit(130)


def translate_document(args: argparse.Namespace) -> None:
    """Translates one file, or standard input, as a document."""
    with (
        contextlib.nullcontext(sys.stdin.buffer) if args.source == "-" else open_text(args.source, utf_8=False) as file
    ):
        content = file.read()
        check_plain(content, "standard input" if args.source == "-" else args.source, utf_8=False)
    format = args.document or FORMATS[0]
    try:
        text, encoding = decoded(content, format)
        READERS[format](text)  # The model takes longer to load than a document to read.
    except tt.BadInput as error:
        raise tt.BadInput(f"{'standard input' if args.source == '-' else args.source}: {error}") from error
    warn_of_kind(args.source, args.document)
    model = opened(args)
    written = tt.documents.translate(model, text, format, **of_calls(vars(args)))
    if args.output:
        write_text(args.output, written, encoding=encoding)
    else:
        sys.stdout.buffer.write(written.encode(encoding, "xmlcharrefreplace"))


def warn_of_kind(source: str, format: str | Literal[False]) -> None:
    """Warns if a file's extension is of a kind that the format does not keep. `False` is --document without one."""
    kind = Path(source.removesuffix(".gz")).suffix[1:].lower()
    fitting = next((name for name, kinds in KINDS.items() if kind in kinds.split()), "")
    if fitting and not format:
        print(f"{source}: read as plain text. For its format, pass --document {fitting}.", file=sys.stderr)
    elif kind in UNSUPPORTED.split():
        what = format or "plain text"
        print(f"{source}: .{kind} is not supported. It is read as {what}, so check the output.", file=sys.stderr)


def write_lines(output: str, lines: Iterable[str]) -> None:
    """Writes lines to a file. If it is interrupted, by a signal, a full disk or an error, OUTPUT.partial keeps them."""
    target = Path(os.path.realpath(user_path(output)))
    partial = target.with_name(f"{target.name}.partial")

    def rescue(written: Path) -> None:
        # A full disk has no room for a copy, so keep the file itself, without an incomplete last line.
        with contextlib.suppress(OSError):
            with open(written, "rb+") as file:
                lengths = [len(line) for line in file if line.endswith(b"\n")]
                file.truncate(sum(lengths))
            if lengths:
                os.replace(written, partial)
                print(f"\nthe first {len(lengths):,} lines are in {partial}", file=sys.stderr)

    write_text(output, lines, rescue)
    if partial.is_file():
        partial.unlink()  # an earlier attempt left it


def translate_files(args: argparse.Namespace, beams: list[str], ending: str) -> None:
    """Translates many files into shards, and keeps existing ones."""
    from tf_transformer.extensions.beam.shards import translate_shard
    from tf_transformer.utils.folders import model_folder

    pipelines.check_options(args.workers, args.runner, beams)
    threads = None if args.runner else pipelines.threads_of_a_worker(args.workers)
    settings = {"threads": threads, "options": of_calls(vars(args))} | chosen(vars(args), ("n_best", "batch_bytes"))
    method = tt.beam.TranslationSettings(str(model_folder(args.model).absolute()), **settings)
    ending += ".gz" if args.gzip else ""
    work = tt.beam.BulkJob(tuple(args.input), args.output, method, ending=ending, **chosen(vars(args), ("lines",)))
    pipeline, began = pipelines.pipeline_on(args.runner, beams), time.monotonic()
    with work.opened() as shards:
        missing = [shard for shard in shards if not Path(shard.path).exists()]

        def progress() -> str:
            done = sum(Path(shard.path).exists() for shard in missing)
            return f"{done:,} of {len(missing):,} files, {time.monotonic() - began:.0f} s"

        if missing and pipeline:
            import apache_beam as beam

            with pipeline:
                _ = pipeline | beam.Create(missing) | tt.beam.TranslateShards(method)
        elif missing:
            with pipelines.processes(args.workers or 1, work.folder / "log", progress) as each:
                each(functools.partial(translate_shard, method), missing)
    lines, seconds = sum(shard.lines.count for shard in missing), time.monotonic() - began
    kept = f"; {len(shards) - len(missing):,} were there" if len(missing) < len(shards) else ""
    print(f"{len(missing):,} files, {lines:,} lines in {seconds:.0f} s, {lines / seconds:.0f} a second{kept}")


if __name__ == "__main__":
    run_program(main)
