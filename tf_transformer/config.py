"""Configurations: one is one row of Table 3."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from tf_transformer.utils.type_names import Dtype
from tf_transformer.utils.values import BadInput as BadInput
from tf_transformer.utils.values import Count, Rate, between, check_fields, checked

Layers = Annotated[int, between(1, 10_000)]
Activation = Literal["swish", "silu", "relu", "gelu"]
Bytes = Annotated[int, between(0, 2**63 - 1)]
DTYPES = get_args(Dtype)
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and rates of a Transformer, in the paper's notation. The defaults are `base` (section 5.4, Table 3).
    To change a preset, call `dataclasses.replace(tt.PRESETS["base"], num_layers=2)`.

    Attributes:
        num_layers: N, number of layers in each of the two stacks.
        d_model: width of every sub-layer's output.
        d_ff: width of the feed-forward sub-layer's hidden layer.
        num_heads: h, number of attention heads.
        d_k: width of a head's keys and queries, by default d_model / num_heads.
        d_v: width of a head's values, by default d_model / num_heads.
        dropout: P_drop, the dropout rate. It applies to every sub-layer's output and to embedding + position.
        attention_dropout: dropout rate of attention weights, not in the paper.
        label_smoothing: epsilon_ls of section 5.4.
        positions: "sinusoidal" (section 3.5) or "learned" (row E).
        max_length: number of learned positions, unused if they are sinusoidal.
        vocab_size: V, size of the shared vocabulary, including control tokens.
        num_decoder_layers: number of decoder layers, if not num_layers. Fewer translate faster.
        norm_first: whether to normalize before sub-layers and after each stack, not after sub-layers as in the paper.
        activation: activation of feed-forward networks: "relu" as in the paper, "gelu", or "swish", also named "silu".
        use_bias: whether attention's projections have biases, for families whose models have them.
        epsilon: epsilon of layer normalization, from the authors' code.

    Raises:
        BadInput: If a value is out of range.
    """

    num_layers: Layers = 6
    d_model: Count = 512
    d_ff: Count = 2048
    num_heads: Count = 8
    d_k: Count | None = None
    d_v: Count | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    label_smoothing: Rate = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: Count = 1024
    vocab_size: Count = 37_000
    num_decoder_layers: Layers | None = None
    norm_first: bool = False
    activation: Activation = "relu"
    use_bias: ClassVar[bool] = False
    epsilon: ClassVar[float] = 1e-6

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None and self.d_model % self.num_heads:
                raise BadInput(
                    f"{name}=None means d_model / num_heads, but d_model={self.d_model} is not a multiple "
                    f"of num_heads={self.num_heads}; give {name} a number"
                )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, for JSON."""
        return dataclasses.asdict(self)

    @property
    def decoder_layers(self) -> int:
        """Number of layers in the decoder."""
        return self.num_decoder_layers or self.num_layers

    @property
    def num_positions(self) -> int | None:
        """Length of the longest sequence that has positions. `None` means any."""
        return self.max_length if self.positions == "learned" else None

    @property
    def alignment_heads(self) -> int | None:
        """Number of the last layer's first heads whose mean aligns words. `None` means all."""
        return None

    @property
    def matrix_weights(self) -> int:
        """Number of weights in the model's matrices, without biases and norms."""
        # Per column of d_model: W^Q and W^K have h * d_k weights each, W^V and W^O h * d_v, W_1 and W_2 d_ff.
        d_k, d_v = (size or self.d_model // self.num_heads for size in (self.d_k, self.d_v))
        attention, feed_forward = 2 * self.num_heads * (d_k + d_v), 2 * self.d_ff
        rows = self.vocab_size + (self.num_positions or 0)
        encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
        return self.d_model * (rows + self.num_layers * encoder + self.decoder_layers * decoder)

    @checked
    def check_stored(self, size: Bytes) -> None:
        """Raises BadInput if a file of `size` bytes is too small for this model, even with one byte per weight.

        This detects a damaged configuration before memory is allocated.
        """
        if self.matrix_weights > size:
            names = ("vocab_size", "d_model", "d_ff", "num_layers")
            sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
            raise BadInput(f"expected sizes of a model that fit the {size:,} bytes of its weights, got {sizes}")


def current_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a stored configuration without those that only earlier versions had.

    Raises:
        BadInput: If the model depends on one of them.
    """
    if values.get("attention_window"):
        raise BadInput("attention_window: this version has no such option. Override make_encoder_layers instead.")
    return {name: value for name, value in values.items() if name != "attention_window"}


# Rows of Table 3, named by letter and change. Each differs from `base` only in what its row lists.
BASE = TransformerConfig()
_row = dataclasses.replace
BIG = _row(BASE, d_model=1024, d_ff=4096, num_heads=16, dropout=0.3)

PRESETS: dict[str, TransformerConfig] = {
    "base": BASE,
    "big": BIG,
    "A_h1": _row(BASE, num_heads=1),
    "A_h4": _row(BASE, num_heads=4),
    "A_h16": _row(BASE, num_heads=16),
    "A_h32": _row(BASE, num_heads=32),
    "B_dk16": _row(BASE, d_k=16),
    "B_dk32": _row(BASE, d_k=32),
    "C_N2": _row(BASE, num_layers=2),
    "C_N4": _row(BASE, num_layers=4),
    "C_N8": _row(BASE, num_layers=8),
    "C_d256": _row(BASE, d_model=256),
    "C_d1024": _row(BASE, d_model=1024),
    "C_ff1024": _row(BASE, d_ff=1024),
    "C_ff4096": _row(BASE, d_ff=4096),
    "D_drop0": _row(BASE, dropout=0.0),
    "D_drop2": _row(BASE, dropout=0.2),
    "D_ls0": _row(BASE, label_smoothing=0.0),
    "D_ls2": _row(BASE, label_smoothing=0.2),
    "E_learned": _row(BASE, positions="learned"),
    # Not in the paper: a model that trains in minutes, one for corpora of some ten thousand sentences, and the size in
    # the Multi30k literature (Wu et al. 2021).
    "tiny": TransformerConfig(2, 128, 512, 4, vocab_size=1_000),
    "small": TransformerConfig(3, 256, 512, 4, dropout=0.3, vocab_size=8_000),
    "multi30k": TransformerConfig(4, 128, 256, 4, dropout=0.3, vocab_size=10_000),
}
