"""Translate a file, or standard input, line by line, with a SavedModel."""

import sys

from trainers.command import in_chunks, load_tensorflow, options, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("translate", __doc__)
    parser.add_argument("model", help="the folder of a SavedModel, e.g. savedmodels/demo/1")
    parser.add_argument("source", nargs="?", default="-", help="a text file, plain or .gz; - is standard input (-)")
    parser.add_argument("--output", help="where the translations go (standard output)")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences a batch (32)")
    args = parser.parse_args(argv)
    if args.batch_size < 1:
        parser.error(f"--batch-size: expected a positive number, got {args.batch_size}")

    load_tensorflow()
    import tf_transformer as tt

    translator = tt.SavedTranslator(args.model, args.batch_size)
    if args.source == "-":
        lines = sys.stdin.buffer.read().split(b"\n")
    else:
        with tt.tokenizer.open_text(args.source) as file:
            lines = file.read().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    translated = (f"{translation}\n" for translation in in_chunks(translator, lines))
    if args.output:
        tt.files.write_text(args.output, translated)
    else:
        sys.stdout.buffer.writelines(line.encode() for line in translated)


if __name__ == "__main__":
    run_program(main)
