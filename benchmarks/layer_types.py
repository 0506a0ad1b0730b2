"""Measures Table 1: time and memory of one layer of each type against sequence length n and width d, and the exponents
of their growth, next to the paper's formulas. One sequence, forward pass, stock Keras except for attention."""

import functools
import json
from pathlib import Path

from benchmarks import common, draw

# Columns of the paper: complexity per layer, sequential operations, maximum path length.
TYPES = {
    "self-attention": ("n² d", "1", "1"),
    "recurrent": ("n d²", "n", "n"),
    "convolutional": ("k n d²", "1", "log_k n"),
    "separable convolution": ("k n d + n d²", "1", "log_k n"),
    "restricted self-attention": ("r n d", "1", "n / r"),
}
LARGE = 4  # number of points, the largest, that an exponent is fitted to


def main(argv=None) -> dict:
    parser = common.parser("layer_types", __doc__)
    add = parser.add_argument
    add("--layers", nargs="+", default=list(TYPES), choices=TYPES, metavar="TYPE", help=f"(all of {', '.join(TYPES)})")
    add("--longest", type=int, default=32_768, metavar="N", help="largest of eight n, each twice the previous (32768)")
    add("--length", type=int, default=2_048, metavar="N", help="n while d varies from d_model / 4 to 4 d_model (2048)")
    add("--window", type=int, default=128, metavar="R", help="r of restricted self-attention (128)")
    add("--kernel", type=int, default=3, metavar="K", help="k of the convolutions (3)")
    add("--most-mib", type=int, default=1_024, metavar="MIB", help="skip attention weights [h, n, n] above this (1024)")
    add("--rounds", type=int, default=4, help="passes over all points (4)")
    add("--repeats", type=int, default=3, help="timed calls per pass, of which the fastest counts (3)")
    add("--warmup", type=int, default=1, help="untimed calls before (1)")
    add("--backward", action="store_true", help="also compute the gradients of inputs and weights")
    add("--picture", type=Path, metavar="FILE", help="output plot")
    args = parser.parse_args(argv)
    work = common.WORKS[args.config]
    common.prepare_tensorflow(args)
    head = work.d_model // work.num_heads  # the same in layers of every width
    lengths = [max(args.longest >> i, 1) for i in reversed(range(8))]
    widths = sorted({head * max(work.num_heads * factor // 4, 1) for factor in (1, 2, 4, 8, 16)})
    points = [("n", n, work.d_model) for n in lengths] + [("d", args.length, d) for d in widths]
    calls = [
        (layer, varied, n, d, prepared(layer, n, d, head, args))
        for layer in args.layers
        for varied, n, d in points
        if layer != "self-attention" or d // head * n * n * 4 <= args.most_mib * 2**20
    ]
    rows = [measure(*point, args) for _ in range(args.rounds) for point in calls]
    powers = exponents(rows)
    print(table(powers))
    print(times(rows))
    if args.picture:
        draw.layer_types(rows, {name: f"{name}, O({TYPES[name][0]})" for name in args.layers}, args.picture)
    packages = ["tf-transformer", "tensorflow", "keras"]
    return common.say("layer_types", "tf_transformer", args, packages, points=len(calls), exponents=powers)


def prepared(layer: str, n: int, d: int, head: int, args):
    """Compiles one layer's forward pass on x [1, n, d], or with the gradients of the sum of its squares."""
    import tensorflow as tf

    forward = function_of(layer, d, head, args)

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            # Its gradient needs the outputs, so that the forward pass is not dropped from the graph.
            total = tf.nn.l2_loss(forward(x))
        of_x, *of_weights = tape.gradient(total, [x, *tape.watched_variables()])
        # So that no gradient is dropped from the graph.
        with tf.control_dependencies(of_weights):
            return tf.identity(of_x)

    function = tf.function(both if args.backward else forward, autograph=False)
    x = tf.cast(tf.random.stateless_normal([1, n, d], [common.SEED, n]), args.dtype)
    return lambda: function(x)[0, -1].numpy()


def measure(layer: str, varied: str, n: int, d: int, call, args) -> dict:
    """Measures the fastest time, and the memory in addition to x and weights."""
    clock = common.timed(call, args.repeats, args.warmup)
    row = {
        "layer": layer,
        "varied": varied,
        "n": n,
        "d": d,
        "milliseconds": round(min(clock.seconds(args.warmup)) * 1e3, 3),
        "mib": round(common.request_mib(call), 3),
        "others_cores": round(clock.others(args.warmup), 2),
    }
    print(json.dumps(row), flush=True)
    return row


def function_of(layer: str, d: int, head: int, args):
    """Returns a layer of the type as a function of x [1, n, d]."""
    import keras

    from tf_transformer.layers import MultiHeadAttention, restricted_attention

    if layer == "recurrent":
        return keras.layers.LSTM(d, return_sequences=True, dtype=args.dtype)
    if layer == "convolutional":
        return keras.layers.Conv1D(d, args.kernel, padding="same", dtype=args.dtype)
    if layer == "separable convolution":
        return keras.layers.SeparableConv1D(d, args.kernel, padding="same", dtype=args.dtype)
    attention = MultiHeadAttention(d // head, dtype=args.dtype)
    if layer == "self-attention":
        return attention
    attention.build((None, None, d))
    near = functools.partial(restricted_attention, window=args.window)
    return lambda x: attention.attend(x, attention.project(x), attention=near)[0]


def exponents(rows: list[dict]) -> dict[str, dict[str, float | None]]:
    """Fits the exponents of time and memory of each layer: least squares through the logarithms of its largest points.

    The fastest measurement of a point counts, since other work only makes it slower. `None` means fewer than two
    points, or that TensorFlow's allocator counted nothing.
    """
    import numpy as np

    powers: dict[str, dict[str, float | None]] = {}
    for layer, varied in dict.fromkeys((row["layer"], row["varied"]) for row in rows):
        for name, measured in (("time", "milliseconds"), ("memory", "mib")):
            points = np.array(common.least_values(rows, layer, varied, measured)[-LARGE:])
            fits = len(points) > 1 and points.min() > 0
            slope = round(float(np.polyfit(*np.log(points).T, 1)[0]), 2) if fits else None
            powers.setdefault(layer, {})[f"{name}, {varied}"] = slope
    return powers


def times(rows: list[dict]) -> str:
    """Returns the fastest milliseconds of each layer by sequence length n in Markdown."""
    lengths = sorted({row["n"] for row in rows if row["varied"] == "n"})
    lines = ["| ms, n | " + " | ".join(f"{n:,}" for n in lengths) + " |", "|---" * (1 + len(lengths)) + "|"]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        least = dict(common.least_values(rows, layer, "n", "milliseconds"))
        lines.append(f"| {layer} | " + " | ".join(f"{least[n]:.3g}" if n in least else "" for n in lengths) + " |")
    return "\n".join(lines)


def table(powers: dict[str, dict[str, float | None]]) -> str:
    """Returns the paper's Table 1 with the measured exponents in Markdown."""
    columns = ["time, n", "time, d", "memory, n", "memory, d"]
    lines = [
        "| layer | complexity | sequential operations | longest path | " + " | ".join(columns) + " |",
        "|---|---|---|---|" + "---|" * len(columns),
    ]
    for layer, by_column in powers.items():
        theory = " | ".join(f"O({formula})" for formula in TYPES[layer])
        lines.append(f"| {layer} | {theory} | " + " | ".join(str(by_column[column]) for column in columns) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
