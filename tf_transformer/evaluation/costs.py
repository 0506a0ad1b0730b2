"""The cost of training in floating point operations (section 6.1, Table 2): by the paper's method, and by counting.

`python -m tf_transformer.evaluation.costs` prints both for the paper's two models.
"""

import re
from dataclasses import dataclass

from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Amount, Count, Natural, check_fields, checked

TRAININGS = {"base": (12, 100_000), "big": (3.5 * 24, 300_000)}  # hours on 8 P100, and steps (section 5.2)
P100 = 9.5  # TFLOP/s, sustained, as the paper estimates it (footnote 5)
LENGTH = 32  # assumed tokens a sentence; WMT 2014 has about as many


@checked
def training_cost(hours: Amount, devices: Count, tflops: Amount) -> float:
    """Floating point operations by the paper's method: time x devices x sustained TFLOP/s."""
    return hours * 3600 * devices * tflops * 1e12


def parameters(config: TransformerConfig) -> int:
    """The number of parameters of a `Transformer`."""
    vectors = config.d_ff + config.d_model  # biases; those of norms and their gains are d_model each
    encoder, decoder = vectors + 4 * config.d_model, vectors + 6 * config.d_model
    ends = 4 * config.d_model * config.norm_first  # at the end of each stack
    return config.matrix_weights + config.num_layers * encoder + config.decoder_layers * decoder + ends


def _heads(config: TransformerConfig) -> int:
    """h (d_k + d_v)."""
    d_k, d_v = (size or config.d_model // config.num_heads for size in (config.d_k, config.d_v))
    return config.num_heads * (d_k + d_v)


def _attention(config: TransformerConfig) -> int:
    """Weights of the four projections."""
    return 2 * config.d_model * _heads(config)


def _feed_forward(config: TransformerConfig) -> int:
    return 2 * config.d_model * config.d_ff


@checked
def forward_flops(config: TransformerConfig, source: Natural, target: Natural) -> int:
    """Floating point operations of a forward pass of one sentence pair: the products alone, two a weight.

    Args:
        source: S, tokens.
        target: T, tokens.
    """
    attended = _heads(config)  # products of a query and a key, and of a weight and a value
    half = _attention(config) // 2  # query and output, or key and value
    encoder = source * (_attention(config) + _feed_forward(config)) + source * source * attended
    decoder = target * (_attention(config) + half + _feed_forward(config)) + source * half
    decoder += target * (target + source) * attended
    layers = config.num_layers * encoder + config.decoder_layers * decoder
    return 2 * (layers + target * config.d_model * config.vocab_size)


@checked
def training_flops(
    config: TransformerConfig, pairs: Amount, source: Natural = LENGTH, target: Natural = LENGTH
) -> float:
    """Floating point operations of training on N pairs; the backward pass takes twice as many as the forward pass."""
    return 3.0 * pairs * forward_flops(config, source, target)


@checked
def activations(config: TransformerConfig, source: Natural, target: Natural) -> int:
    """The least count of numbers that the forward pass of a sentence pair keeps for the backward pass."""
    d, heads = config.d_model, 2 * _heads(config)  # query, key, value, and what is joined
    scores = config.num_heads * (1 + bool(config.attention_dropout))
    encoder = source * (heads + 5 * d + config.d_ff + scores * source)
    decoder = target * (2 * heads + 8 * d + config.d_ff + scores * (target + source)) + source * heads // 2
    return config.num_layers * encoder + config.decoder_layers * decoder + 2 * target * config.vocab_size


@dataclass(frozen=True)
class Training:
    """The settings of a training that its cost depends on.

    Attributes:
        steps: updates.
        batch_tokens: source tokens, and target tokens, of a batch.
        half: most numbers have 16 bits.
        parts: N, if a replica computes a batch in N parts.
    """

    steps: Count
    batch_tokens: Count
    half: bool = False
    parts: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def plan(config: TransformerConfig, training: Training, devices: str | None) -> str:
    """Estimate time and memory of a training, as text.

    Args:
        devices: their number and the TFLOP/s of one, as in "8x9.5"; "312" is one device. `None` leaves the time out,
            for one device.

    Raises:
        BadInput: the devices are something else.
    """
    count, tflops = (1, 0.0) if devices is None else _devices(devices)
    steps, batch_tokens = training.steps, training.batch_tokens
    flops = training_flops(config, steps * batch_tokens / LENGTH)
    numbers = activations(config, LENGTH, LENGTH) * (batch_tokens / LENGTH) / count / training.parts
    kept = numbers * (2 if training.half else 4)
    text = f"""parameters: {parameters(config):,}
steps: {steps:,} of {batch_tokens:,} source and {batch_tokens:,} target tokens, {steps * batch_tokens:.1e} of each
operations: {flops:.1e} FLOP, with sentences of {LENGTH} tokens
memory of a device: {parameters(config) * 16 / 1e9:.2f} GB for weights, gradients and Adam's two moments; \
{kept / 1e9:.2f} GB at least for activations
export: {parameters(config) * 4 / 1e6:,.0f} MB of weights in float32"""
    if devices is None:
        return text
    hours = flops / (count * tflops * 3600e12)
    share = training_flops(PRESETS["base"], 100_000 * 25_000 / LENGTH) / PAPER["base"]
    return f"""{text}
time on {count} x {tflops:g} TFLOP/s: {hours:,.1f} hours at that rate all the time; \
{hours / share:,.1f} with the {share:.0%} that the paper's base model got"""


def _devices(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?)", text.replace(" ", ""))
    count, tflops = (int(match[1] or 1), float(match[2])) if match else (0, 0.0)
    if not count * tflops:
        raise BadInput(f"devices: expected their number and the TFLOP/s of one, as in 8x9.5; got {text!r}")
    return count, tflops


PAPER = {name: training_cost(hours, 8, P100) for name, (hours, _) in TRAININGS.items()}


def main() -> None:
    say("training cost (Table 2)      paper's method    counted    share")
    for name, (_, steps) in TRAININGS.items():
        cost, counted = PAPER[name], training_flops(PRESETS[name], steps * 25_000 / LENGTH)
        say(f"Transformer ({name})".ljust(29) + f"{cost:14.1e} {counted:10.1e} {counted / cost:8.0%}")


if __name__ == "__main__":
    main()
