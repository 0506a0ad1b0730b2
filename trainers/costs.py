"""The cost of training in floating point operations (section 6.1, Table 2): by the paper's method, and by counting.

`python -m tf_transformer.trainers.costs` prints both for the paper's two models.
"""

import re
from dataclasses import dataclass

from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Amount, Count, Natural, check_fields, checked

TRAININGS = {"base": (12, 100_000), "big": (3.5 * 24, 300_000)}  # hours on 8 P100, and steps (section 5.2)
P100 = 9.5  # TFLOP/s, sustained, as the paper estimates it (footnote 5)
LENGTH = 32  # assumed tokens per sentence, about the mean of WMT 2014


@checked
def training_cost(hours: Amount, devices: Count, tflops: Amount) -> float:
    """Returns floating point operations by the paper's method: time x devices x sustained TFLOP/s."""
    return hours * 3600 * devices * tflops * 1e12


def parameters(config: TransformerConfig) -> int:
    """Returns the number of parameters of a `Transformer`."""
    biases, norm = config.d_ff + config.d_model, 2 * config.d_model  # feed-forward biases, gain and bias of a norm
    encoder, decoder = biases + 2 * norm, biases + 3 * norm
    final_norms = 2 * norm * config.norm_first
    return config.matrix_weights + config.num_layers * encoder + config.decoder_layers * decoder + final_norms


def _head_widths(config: TransformerConfig) -> int:
    """Returns h (d_k + d_v)."""
    d_k, d_v = (size or config.d_model // config.num_heads for size in (config.d_k, config.d_v))
    return config.num_heads * (d_k + d_v)


@checked
def forward_flops(config: TransformerConfig, source: Natural, target: Natural) -> int:
    """Returns floating point operations of a forward pass of one sentence pair: two per weight of a matmul.

    Args:
        config: Configuration of the model.
        source: S, tokens of the source.
        target: T, tokens of the target.
    """
    # Each pair of tokens takes a product of query and key, and one of weight and value.
    attended = _head_widths(config)
    half = config.d_model * attended  # projections of query and output, or of key and value
    feed_forward = 2 * config.d_model * config.d_ff
    encoder = source * (2 * half + feed_forward) + source * source * attended
    decoder = target * (3 * half + feed_forward) + source * half + target * (target + source) * attended
    layers = config.num_layers * encoder + config.decoder_layers * decoder
    return 2 * (layers + target * config.d_model * config.vocab_size)


@checked
def training_flops(
    config: TransformerConfig, pairs: Amount, source: Natural = LENGTH, target: Natural = LENGTH
) -> float:
    """Returns floating point operations of training on `pairs`. A backward pass takes twice those of a forward pass."""
    return 3.0 * pairs * forward_flops(config, source, target)


@checked
def activations(config: TransformerConfig, source: Natural, target: Natural) -> int:
    """Returns a lower bound on the number of activations that the forward pass of a sentence pair stores."""
    d, heads = config.d_model, 2 * _head_widths(config)  # query, key, value, and the heads' outputs
    scores = config.num_heads * (1 + bool(config.attention_dropout))
    encoder = source * (heads + 5 * d + config.d_ff + scores * source)
    decoder = target * (2 * heads + 8 * d + config.d_ff + scores * (target + source)) + source * heads // 2
    return config.num_layers * encoder + config.decoder_layers * decoder + 2 * target * config.vocab_size


@dataclass(frozen=True)
class Training:
    """Settings that determine the cost of a training.

    Attributes:
        steps: Number of updates.
        batch_tokens: Source tokens of a batch, and as many target tokens.
        half: Whether most numbers have 16 bits.
        num_microbatches: Microbatches per batch, which a device computes one after the other.
    """

    steps: Count
    batch_tokens: Count
    half: bool = False
    num_microbatches: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def plan(config: TransformerConfig, training: Training, devices: str | None) -> str:
    """Returns an estimate of time and memory of a training, as text.

    Args:
        config: Configuration of the model.
        training: Settings of the training.
        devices: Number of devices and TFLOP/s of one, such as "8x9.5" or, for one device, "312". `None` means one
            device, and no estimate of the time.

    Raises:
        BadInput: If `devices` is something else.
    """
    count, tflops = 1, 0.0
    if devices is not None:
        match = re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?)", devices.replace(" ", ""))
        count, tflops = (int(match[1] or 1), float(match[2])) if match else (0, 0.0)
        if not count * tflops:
            raise BadInput(f"devices: expected their number and the TFLOP/s of one, such as 8x9.5, got {devices!r}")
    steps, batch_tokens = training.steps, training.batch_tokens
    flops = training_flops(config, steps * batch_tokens / LENGTH)
    numbers = activations(config, LENGTH, LENGTH) * (batch_tokens / LENGTH) / count / training.num_microbatches
    stored = numbers * (2 if training.half else 4)
    text = f"""parameters: {parameters(config):,}
steps: {steps:,} of {batch_tokens:,} source and {batch_tokens:,} target tokens, {steps * batch_tokens:.1e} of each
operations: {flops:.1e} FLOP, with sentences of {LENGTH} tokens
memory of a device: {parameters(config) * 16 / 1e9:.2f} GB for weights, gradients and Adam's two moments; \
{stored / 1e9:.2f} GB at least for activations
export: {parameters(config) * 4 / 1e6:,.0f} MB of weights in float32"""
    if devices is None:
        return text
    hours = flops / (count * tflops * 3600e12)
    share = training_flops(PRESETS["base"], 100_000 * 25_000 / LENGTH) / PAPER["base"]
    return f"""{text}
time on {count} x {tflops:g} TFLOP/s: {hours:,.1f} hours at that rate all the time; \
{hours / share:,.1f} with the {share:.0%} that the paper's base model got"""


PAPER = {name: training_cost(hours, 8, P100) for name, (hours, _) in TRAININGS.items()}


def main() -> None:
    say("training cost (Table 2)      paper's method    counted    share")
    for name, (_, steps) in TRAININGS.items():
        cost, counted = PAPER[name], training_flops(PRESETS[name], steps * 25_000 / LENGTH)
        say(f"Transformer ({name})".ljust(29) + f"{cost:14.1e} {counted:10.1e} {counted / cost:8.0%}")


if __name__ == "__main__":
    main()
