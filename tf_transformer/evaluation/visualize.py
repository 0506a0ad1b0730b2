"""Plots of attention weights, as in the paper's appendix: an interactive HTML page, and matplotlib figures.

A pair of sentences is (source, target, scores): S source tokens, T target tokens, and the `AttentionScores` of only
this pair, B = 1. `Translator.attention` returns such pairs. A row of the decoder's weights belongs to the token that
it predicts. Its self-attention reads the tokens before that one.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.models.transformer import AttentionScores
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.values import between, checked

Layer = Annotated[int, between(-10_000, 9_999)]
Kind = Literal["encoder", "decoder", "cross"]
KINDS: dict[str, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
Pair = tuple[Sequence[str], Sequence[str], AttentionScores]

MARKER = "/*DATA*/"  # in attention.html
BEGIN = "<s>"  # the decoder's first input
# Invisible characters, as Unicode's Control Pictures.
CONTROLS = {code: 0x2400 + code for code in range(32)} | {127: 0x2421} | {code: 0xFFFD for code in range(128, 160)}
CELL = 0.15  # inches per token
FONT = 7.0  # points


def attention_page(pairs: Iterable[Pair]) -> str:
    """Returns an HTML page in which you choose pair, kind of attention, layer and heads, and point at tokens.

    Style, program and data are in the page, so it loads nothing from the network. Weights are stored in thousandths,
    about 2.5 bytes each: 0.1 MB for `base` and 30 tokens per side, 10 MB for 200.

    Args:
        pairs: Pairs (source, target, scores), at least one.

    Raises:
        BadInput: If `pairs` is empty, or the weights of a pair do not fit its tokens.
    """

    def as_json(rows: list[str], columns: list[str], layers: list[np.ndarray]) -> dict[str, Any]:
        thousandths = [np.rint(1000 * layer.astype("float64")).astype(int) for layer in layers]
        # The page reads missing values at the end of a row as 0.
        weights = [[[np.trim_zeros(row, "b").tolist() for row in head] for head in layer] for layer in thousandths]
        return {"rows": rows, "columns": columns, "layers": weights}

    data = [{kind: as_json(*parts) for kind, parts in _parts(pair).items()} for pair in pairs]
    if not data:
        raise BadInput("expected a pair of sentences to draw, got none")
    text = json.dumps({"kinds": KINDS, "pairs": data}, separators=(",", ":"))
    # Only "<" needs escaping inside a script element. The other two are for other parsers.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Path(__file__).with_name("attention.html").read_text(encoding="utf-8").replace(MARKER, text)


@checked
def attention_figure(pair: Pair, kind: Kind = "cross", layer: Layer = -1, heads: Iterable[int] | None = None) -> Any:
    """Returns a `matplotlib.figure.Figure` with one matrix per head: rows attend to columns.

    Its size depends on the number of tokens.

    Args:
        pair: Pair (source, target, scores).
        kind: "encoder", "decoder" or "cross".
        layer: Index of the layer. -1 is the last.
        heads: Indices of the heads. Defaults to all.

    Raises:
        BadInput: If kind, layer or head does not exist, the weights do not fit the tokens, or matplotlib is missing.
    """
    Figure = import_extra("matplotlib.figure", "pictures", "a figure").Figure
    rows, columns, layers = _parts(pair)[kind]
    if not -len(layers) <= layer < len(layers):
        raise BadInput(f"layer: expected one of {len(layers)}, 0 to {len(layers) - 1}, got {layer}")
    weights = layers[layer]
    chosen = range(len(weights)) if heads is None else list(heads)
    if not chosen or not all(0 <= head < len(weights) for head in chosen):
        raise BadInput(f"heads: expected some of {len(weights)}, 0 to {len(weights) - 1}, got {list(chosen)}")

    strongest = weights[list(chosen)].max()
    longest = [max(map(len, tokens)) * FONT / 110 + 0.15 for tokens in (columns, rows)]  # inches of labels
    width, height = CELL * len(columns) + longest[1], CELL * len(rows) + longest[0] + 0.25
    across = min(len(chosen), max(1, round((len(chosen) * height / width) ** 0.5)))
    down = -(-len(chosen) // across)
    size = max(3.2, across * width + 0.6), down * height + 0.4
    figure = Figure(figsize=size, dpi=150 if max(size) < 30 else 100, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for plot in axes:
        plot.set_axis_off()
    for plot, head in zip(axes, chosen, strict=False):
        plot.set_axis_on()
        image = plot.imshow(weights[head], vmin=0, vmax=strongest, cmap="Blues")
        plot.set_title(f"head {head + 1}", fontsize=FONT + 1)
        label = {"fontsize": FONT, "parse_math": False}
        plot.set_xticks(range(len(columns)), columns, rotation=90, **label)
        plot.set_yticks(range(len(rows)), rows, **label)
        plot.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 1.5 / size[1]), aspect=12)
    bar.ax.tick_params(labelsize=FONT)
    figure.suptitle(f"{KINDS[kind]}, layer {layer % len(layers) + 1} of {len(layers)}", fontsize=FONT + 2)
    return figure


def _parts(pair: Pair) -> dict[str, tuple[list[str], list[str], list[np.ndarray]]]:
    """Returns by kind the tokens that attend, those they attend to, and each layer's weights [h, rows, columns]."""
    source, target = ([token.translate(CONTROLS) for token in tokens] for tokens in pair[:2])
    sides = {"encoder": (source, source), "decoder": (target, [BEGIN, *target[:-1]]), "cross": (target, source)}
    parts = {}
    for kind, (rows, columns) in sides.items():
        layers = [np.asarray(keras.ops.convert_to_numpy(weights)) for weights in getattr(pair[2], kind)]
        for number, weights in enumerate(layers):
            expected = (1, weights.shape[1] if weights.ndim == 4 else "heads", len(rows), len(columns))
            if weights.shape != expected:
                raise BadInput(f"{KINDS[kind]} of layer {number}: expected weights {expected}, got {weights.shape}")
        parts[kind] = rows, columns, [weights[0] for weights in layers]
    return parts
