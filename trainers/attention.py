"""Draw what attends to what while a model translates: a page to open in a browser, and figures.

For each sentence the encoder's and the decoder's self-attention and the cross-attention, by layer and head. Without
sentences they are read from standard input, one a line.
"""

import argparse
import io
import sys
from pathlib import Path

from trainers.command import load_tensorflow, options, run_program

PAGE = Path("attention.html")


def arguments(argv) -> argparse.Namespace:
    parser = options("attention", __doc__, "Layers and heads are counted from 1. Figures need matplotlib.")
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="what to translate, or to parse")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="DIR", help="a SavedModel of this package, e.g. savedmodels/demo/1")
    what.add_argument("--run", metavar="DIR", help="or a run, e.g. runs/demo: the average of its last checkpoints")
    add("--target", action="append", metavar="TEXT", help="a translation, or tree, to use instead; once a sentence")
    add("--html", type=Path, metavar="FILE", help=f"where the page goes ({PAGE}, without --png)")
    add("--png", type=Path, metavar="FILE", help="where a figure goes; of several sentences FILE-1, FILE-2, ...")
    add("--kind", default="cross", choices=["encoder", "decoder", "cross"], help="of attention in the figure (cross)")
    add("--layer", type=int, metavar="N", help="in the figure (the last one)")
    add("--head", type=int, nargs="+", metavar="N", help="in the figure, one or several (all)")
    args = parser.parse_args(argv)
    for name, numbers in (("layer", [args.layer]), ("head", args.head or [])):
        for number in numbers:
            if number is not None and number < 1:
                parser.error(f"--{name}: expected a positive number, got {number}")
    if not args.png and (args.layer or args.head or args.kind != "cross"):
        parser.error("--kind, --layer and --head: expected --png FILE beside them; the page has them all")
    if not args.png:
        args.html = args.html or PAGE
    return args


def main(argv=None) -> None:
    args = arguments(argv)
    sentences = args.sentences or sys.stdin.read().splitlines()
    tt = load_tensorflow()
    if not sentences:
        raise tt.BadInput("expected a sentence, got none")
    targets = args.target or [None] * len(sentences)
    if len(targets) != len(sentences):
        raise tt.BadInput(f"--target: expected one for each of {len(sentences)} sentences, got {len(targets)}")

    model = load(tt, args)
    pairs = []
    for number, (sentence, target) in enumerate(zip(sentences, targets, strict=True), 1):
        try:
            pairs.append(model.attention(sentence, target))
        except tt.BadInput as error:
            raise tt.BadInput(f"sentence {number}: {error}") from error
        print(" ".join(pairs[-1].source), "->", " ".join(pairs[-1].target), flush=True)

    # Everything is made before anything is written.
    files = {}
    for number, pair in enumerate(pairs if args.png else [], 1):
        name = args.png if len(pairs) == 1 else args.png.with_stem(f"{args.png.stem}-{number}")
        files[name] = png(tt, pair, args)
    if args.html:
        files[args.html] = tt.visualize.attention_page(pairs).encode()
    for name, content in files.items():
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(content)
        print(f"wrote {name}, {len(content):,} bytes")


def load(tt, args):
    """The translator, or the parser, of a SavedModel or a run."""
    if args.model:
        translator = tt.Translator.from_saved_model(args.model)
        return tt.Parser(translator) if translator.tokenizer.symbols else translator
    translator = tt.Translator.from_run(args.run)
    return tt.Parser.from_run(args.run) if translator.tokenizer.symbols else translator


def png(tt, pair, args) -> bytes:
    weights = getattr(pair.scores, args.kind)
    layer, heads = args.layer or len(weights), args.head or range(1, weights[0].shape[1] + 1)
    if layer > len(weights):
        raise tt.BadInput(f"--layer: expected 1 to {len(weights)}, got {layer}")
    if max(heads) > weights[0].shape[1]:
        raise tt.BadInput(f"--head: expected 1 to {weights[0].shape[1]}, got {max(heads)}")
    written = io.BytesIO()
    figure = tt.visualize.attention_figure(pair, args.kind, layer - 1, [head - 1 for head in heads])
    figure.savefig(written, format="png")
    return written.getvalue()


if __name__ == "__main__":
    run_program(main)
