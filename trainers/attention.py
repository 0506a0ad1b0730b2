"""Draw a model's attention weights: a page to open in a browser, and figures.

The page shows each sentence's encoder self-attention, decoder self-attention and cross-attention, by layer and head.
Without arguments, it reads sentences from standard input, one per line.
"""

import io
import sys
from pathlib import Path
from typing import Any

import tf_transformer as tt
from tf_transformer.utils.lines import lines_in

from .command import as_path, load_backend, options, positive, run_program

PAGE = Path("attention.html")


def main(argv: list[str] | None = None) -> None:
    parser = options("attention", __doc__, "Layers and heads are counted from 1. Figures need matplotlib.")
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="sentence to translate or to parse (lines of standard input)")
    model = "run, such as runs/demo, SavedModel of this package, such as savedmodels/demo, or checkpoint"
    add("--model", required=True, metavar="DIR", help=model)
    target = "translation or tree to use instead of the model's, once for each sentence"
    add("--target", action="append", metavar="TEXT", help=target)
    add("--html", type=as_path, metavar="FILE", help=f"file for the page ({PAGE} without --png)")
    add("--png", type=as_path, metavar="FILE", help="file for a figure (FILE-1, FILE-2, ... for several sentences)")
    kinds = ["encoder", "decoder", "cross"]
    add("--kind", default="cross", choices=kinds, help="kind of attention in the figure (cross)")
    add("--layer", type=positive, metavar="N", help="layer in the figure (the last one)")
    add("--head", type=positive, nargs="+", metavar="N", help="heads in the figure (all)")
    args = parser.parse_intermixed_args(argv)
    if not args.png and (args.layer or args.head or args.kind != "cross"):
        parser.error("--kind, --layer and --head: expected --png FILE; the page shows all kinds, layers and heads")
    page = args.html or (None if args.png else PAGE)
    sentences = args.sentences or [line.decode("utf-8", "replace") for line in lines_in(sys.stdin.buffer)]
    load_backend()
    from tf_transformer.inference.translator import trained

    if not sentences:
        raise tt.BadInput("expected a sentence, got none")
    targets = args.target or [None] * len(sentences)
    if len(targets) != len(sentences):
        raise tt.BadInput(f"--target: expected one for each of {len(sentences)} sentences, got {len(targets)}")

    model = trained(args.model)
    pairs = []
    for number, (sentence, target) in enumerate(zip(sentences, targets, strict=True), 1):
        try:
            pairs.append(model.attention(sentence, target))
        except tt.BadInput as error:
            raise tt.BadInput(f"sentence {number}: {error}") from error
        print(" ".join(pairs[-1].source), "->", " ".join(pairs[-1].target), flush=True)

    # Everything is drawn before anything is written.
    files = {}
    for number, pair in enumerate(pairs if args.png else [], 1):
        name = args.png if len(pairs) == 1 else args.png.with_stem(f"{args.png.stem}-{number}")
        files[name] = png(pair, args.kind, args.layer, args.head)
    if page:
        files[page] = tt.visualize.attention_page(pairs).encode()
    for name, content in files.items():
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(content)
        print(f"wrote {name}, {len(content):,} bytes")


def png(pair: Any, kind: Any, layer: int | None, heads: list[int] | None) -> bytes:
    """Draws heads of one layer, counted from 1. `None` means the last layer, all heads."""
    weights = getattr(pair.scores, kind)
    count = weights[0].shape[1]
    layer, heads = layer or len(weights), heads or list(range(1, count + 1))
    if layer > len(weights):
        raise tt.BadInput(f"--layer: expected 1 to {len(weights)}, got {layer}")
    if max(heads) > count:
        raise tt.BadInput(f"--head: expected 1 to {count}, got {max(heads)}")
    figure, written = tt.visualize.attention_figure(pair, kind, layer - 1, [head - 1 for head in heads]), io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


if __name__ == "__main__":
    run_program(main)
