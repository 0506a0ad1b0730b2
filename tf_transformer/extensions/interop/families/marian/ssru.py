"""Models of Marian whose decoder has a recurrent unit instead of self-attention, such as Firefox's.

The unit is the SSRU of Kim et al. 2019, "From Research to Production and Back: Ludicrously Fast Neural Machine
Translation". Its state has a fixed size, so a step takes the same time at every position.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import keras
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.layers import AddAndNorm, DecoderLayer, EncoderLayer, FeedForward, PositionalEmbedding
from tf_transformer.layers.attention import KeyValue
from tf_transformer.layers.decoder import DecoderCache
from tf_transformer.layers.layer import Layer, as_rows, at_least_float32, by_row, dense, resolved_policy
from tf_transformer.layers.sublayers import Dropout, LayerNormalization
from tf_transformer.models.families import Family
from tf_transformer.tokenizers.tokenizer import UNKNOWN_ID, Tokenizer
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import Count, Kind, checked


def _consists_of(letters: str) -> Kind:
    return Kind(f"a sequence of the letters {letters}", lambda value: {*value} <= {*letters}, str)


# Marian's operations: d is dropout, a adds the sub-layer's input, n is layer normalization.
Before = Annotated[str, _consists_of("dn")]
After = Annotated[str, _consists_of("dan")]


@dataclass(frozen=True)
class SSRUConfig(MarianConfig):
    """Configuration of a model with an SSRU decoder.

    Attributes:
        alignment_heads: number of heads, the first of the last layer, that were trained to align. `None` means all.
        preprocess: Marian's operations before each sub-layer, of d (dropout) and n (layer normalization).
        postprocess: Marian's operations after each sub-layer, of d, a (add the sub-layer's input) and n.
        postprocess_top: Marian's operations after each stack, "n" or none.
        ffn_depth: number of matrices in the encoder's feed-forward networks.
        decoder_ffn_depth: number of matrices in the decoder's feed-forward networks.
        tied_output: whether the target's embeddings are also the pre-softmax weights.
    """

    alignment_heads: Count | None = 1
    preprocess: Before = ""
    postprocess: After = "dan"
    postprocess_top: Literal["", "n"] = ""
    ffn_depth: Count = 2
    decoder_ffn_depth: Count = 2
    tied_output: bool = True
    epsilon: ClassVar[float] = 1e-6

    @property
    def matrix_weights(self) -> int:
        # The decoder has two square matrices where it would have self-attention's four.
        weights = super().matrix_weights - 2 * self.decoder_layers * self.d_model**2
        for layers, depth, width in (
            (self.num_layers, self.ffn_depth, self.d_ff),
            (self.decoder_layers, self.decoder_ffn_depth, self.decoder_d_ff),
        ):
            weights += layers * (_ffn_weights(self.d_model, width, depth) - 2 * self.d_model * width)
        return weights + (0 if self.tied_output else self.vocab_size * self.d_model)


def _ffn_weights(d_model: int, d_ff: int, depth: int) -> int:
    return d_model**2 if depth == 1 else 2 * d_model * d_ff + (depth - 2) * d_ff**2


MAX_DOUBLINGS = 14  # for targets of up to 2^14 tokens


@keras.saving.register_keras_serializable("tf_transformer")
class SSRU(Layer):
    """Simpler simple recurrent unit (Kim et al. 2019, section 3.1).

    Computes `relu(c_t)` with `c_t = f_t * c_(t-1) + (1 - f_t) * (W x_t)` and `f_t = sigmoid(W_f x_t + b_f)`. The first
    state is zero.

    Call arguments:
        x: Tensor of shape `(B, T, d)`.
        mask: Padding mask `(B, T)`. Padding leaves the state as it is.

    Returns:
        Tensor of shape `(B, T, d)`.
    """

    def build(self, x_shape: Shape) -> None:
        d_model = x_shape[-1]
        self.input_projection = dense(d_model, use_bias=False, dtype=resolved_policy(self, "input"), name="input")
        self.forget_gate = dense(d_model, dtype=resolved_policy(self, "gate"), name="gate")
        for layer in (self.input_projection, self.forget_gate):
            layer.build(x_shape)

    def call(self, x: Tensor, mask: Tensor = None) -> Any:
        return self.output(self.states(*self.project(x, mask)))

    # Sums over a whole target are at least float32, as those of a softmax.

    def project(self, x: Tensor, mask: Tensor = None) -> tuple[Any, Any]:
        """Returns f_t and (1 - f_t) * (W x_t), each [B, T, d], for x [B, T, d] with its padding mask [B, T]."""
        dtype, rows = at_least_float32(self.compute_dtype), as_rows(x)
        gate, new = (ops.cast(layer(rows), dtype) for layer in (self.forget_gate, self.input_projection))
        gate, shape = ops.sigmoid(gate), (*ops.shape(x)[:-1], new.shape[-1])
        gate, new = (ops.reshape(part, shape) for part in (gate, (1.0 - gate) * new))
        if mask is not None:
            mask = ops.expand_dims(mask, -1)
            gate, new = ops.where(mask, gate, 1.0), ops.where(mask, new, 0.0)
        return gate, new

    def states(self, gate: Tensor, new: Tensor, first: Tensor = None) -> Any:
        """Returns the states c_t [B, T, d] of consecutive tokens after the state `first` [B, d]."""

        if first is not None:
            begins = new[:, :1] + gate[:, :1] * ops.expand_dims(first, 1)
            new = ops.concatenate([begins, new[:, 1:]], axis=1)
        tokens = ops.shape(new)[1]

        def doubled(gate: Tensor, new: Tensor, shift: int) -> tuple[Any, Any]:
            padding = ((0, 0), (shift, 0), (0, 0))
            before, so_far = (ops.pad(part[:, :-shift], padding) for part in (new, gate))
            return gate * so_far, gate * before + new

        # A loop over tokens would take T small steps. Each of these combines spans of `shift` tokens with the spans
        # before them: log2(T) large steps.
        for shift in (2**i for i in range(MAX_DOUBLINGS)):
            if not isinstance(tokens, int):
                gate, new = ops.cond(shift < tokens, partial(doubled, gate, new, shift), lambda pair=(gate, new): pair)
            elif shift < tokens:
                gate, new = doubled(gate, new, shift)
        return new

    def output(self, state: Tensor) -> Any:
        """Returns the unit's output for states [B, T, d]."""
        return ops.cast(ops.relu(state), self.compute_dtype)


@keras.saving.register_keras_serializable("tf_transformer")
class MarianAddAndNorm(AddAndNorm):
    """`AddAndNorm` with Marian's operations, which are those of the paper by default.

    Args:
        preprocess: Operations on the sub-layer's input.
        postprocess: Operations on the sub-layer's output.
    """

    @checked
    def __init__(self, preprocess: Before = "", postprocess: After = "dan", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.preprocess = preprocess
        self.postprocess = postprocess

    def build(self, x_shape: Shape, sublayer_output_shape: Shape = None) -> None:
        self.output_dropout = Dropout(self.dropout, dtype=self.dtype_policy, name="output_dropout")
        self.input_norm: Any = self._norm("input_norm", self.preprocess, x_shape)
        self.norm: Any = self._norm("norm", self.postprocess, x_shape)

    def _norm(self, name: str, operations: str, shape: Shape) -> LayerNormalization | None:
        if "n" not in operations:
            return None
        norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name=name)
        norm.build(shape)
        return norm

    def sublayer_input(self, x: Tensor) -> Any:
        return self(x) if self.preprocess else x

    def call(self, x: Tensor, sublayer_output: Tensor = None, training: bool | None = None) -> Any:
        is_before = sublayer_output is None
        operations, norm = (self.preprocess, self.input_norm) if is_before else (self.postprocess, self.norm)
        y = x if is_before else sublayer_output
        for operation in operations:
            if operation == "d":
                y = self.output_dropout(y, training=training)
            else:
                y = ops.add(x, y) if operation == "a" else norm(y)
        return y


@keras.saving.register_keras_serializable("tf_transformer")
class DeepFeedForward(FeedForward):
    """`FeedForward` with any number of matrices.

    Args:
        depth: Number of matrices. All but the last are followed by the activation.
    """

    @checked
    def __init__(self, d_ff: Count = 2048, activation: Any = "relu", depth: Count = 2, **kwargs: Any) -> None:
        super().__init__(d_ff, activation, **kwargs)
        self.depth = depth

    def build(self, x_shape: Shape) -> None:
        self.hidden_layers, shape = [], x_shape
        for i in range(self.depth - 1):
            name = f"hidden_{i}"
            layer = dense(self.d_ff, self.activation, dtype=resolved_policy(self, name), name=name)
            layer.build(shape)
            self.hidden_layers.append(layer)
            shape = (*x_shape[:-1], self.d_ff)
        self.output_projection = dense(x_shape[-1], dtype=resolved_policy(self, "output"), name="output")
        self.output_projection.build(shape)

    def call(self, x: Tensor) -> Any:
        def product(rows: Tensor) -> Any:
            for layer in self.hidden_layers:
                rows = layer(rows)
            return self.output_projection(rows)

        return by_row(product, x)


class _MarianLayer(Layer):
    """The arguments that Marian's layers have in addition to those of `EncoderLayer`."""

    def __init__(self, preprocess: str = "", postprocess: str = "dan", ffn_depth: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.preprocess = preprocess
        self.postprocess = postprocess
        self.ffn_depth = ffn_depth

    def make_feed_forward(self, name: str) -> Any:
        own: Any = self
        return DeepFeedForward(own.d_ff, own.activation, self.ffn_depth, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> MarianAddAndNorm:
        own: Any = self
        options = {"dropout": own.dropout, "epsilon": own.epsilon, "dtype": self.dtype_policy}
        return MarianAddAndNorm(self.preprocess, self.postprocess, name=name, **options)


@keras.saving.register_keras_serializable("tf_transformer")
class MarianEncoderLayer(_MarianLayer, EncoderLayer):
    """`EncoderLayer` with Marian's options.

    Args:
        preprocess, postprocess: Arguments of `MarianAddAndNorm`.
        ffn_depth: Number of matrices of the feed-forward network.
        kwargs: Arguments of `EncoderLayer`.
    """


@keras.saving.register_keras_serializable("tf_transformer")
class SSRUDecoderLayer(_MarianLayer, DecoderLayer):
    """`DecoderLayer` with an `SSRU` instead of self-attention. Its arguments are those of `MarianEncoderLayer`.

    An SSRU has no attention weights, so those of self-attention are zeros, for one head.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.autocast = False  # Keras would round the states of a cache to 16 bits.

    def make_attention(self, name: str) -> Any:
        if name == "self_attention":
            return SSRU(name="ssru", dtype=self.dtype_policy)
        return super().make_attention(name)

    def init_cache(self, memory: Tensor = None, slots: int = 0, x: Tensor = None) -> DecoderCache:
        kv, d_model = self.cross_attention.project(memory), memory.shape[-1]
        # A search's cache has keys and values, so it stores each half of a state as one of these.
        widths = (d_model // 2, d_model - d_model // 2)
        shape, dtype = (ops.shape(memory)[0], 1, slots), at_least_float32(self.compute_dtype)
        return DecoderCache(KeyValue(*(ops.zeros((*shape, width), dtype) for width in widths)), kv)

    def attend_to_earlier(
        self,
        x: Tensor,
        earlier: KeyValue | None,
        slot: Tensor,
        attention_mask: Tensor,
        padding: Tensor,
        positions: Tensor,
        training: bool | None,
    ) -> tuple[Any, Any, Any]:
        unit: Any = self.self_attention
        gate, new = unit.project(x, None if padding is None else padding[:, 0])
        if earlier is None:
            if attention_mask is not None:
                raise BadInput(f"{self.name}: expected no attention_mask, since an SSRU reads all earlier tokens")
            states, target = unit.states(gate, new), None
        else:
            # Each token reads the state of its parent, the newest slot that it may see. The product with the parent's
            # indicator is zero for a first token, which has none, and needs no slot to exist.
            slots = ops.arange(ops.shape(earlier.key)[2], dtype="int32")
            before = slots < slot
            if attention_mask is not None:
                before = before & attention_mask[:, :, : ops.shape(earlier.key)[2]]  # [B, T, C]
            else:
                before = ops.broadcast_to(before, (ops.shape(x)[0], 1, ops.shape(earlier.key)[2]))
            newest = ops.max(ops.where(before, slots, -1), axis=-1, keepdims=True, initial=-1)
            is_parent = ops.expand_dims(ops.cast(before & (slots == newest), gate.dtype), 1)
            # The cache stays whole. A slice of it would be copied.
            parent = ops.concatenate([ops.matmul(is_parent, part) for part in earlier], axis=-1)[:, 0]
            # Without a mask the tokens are consecutive.
            states = unit.states(gate, new, parent[:, 0]) if attention_mask is None else gate * parent + new
            halves = ops.expand_dims(states, 1)
            middle = earlier.key.shape[-1]
            target = earlier.write(slot, KeyValue(halves[..., :middle], halves[..., middle:]))
        columns = ops.shape(x)[1] if target is None else ops.shape(target.key)[2]
        scores = ops.zeros((ops.shape(x)[0], 1, ops.shape(x)[1], columns))
        return unit.output(states), scores, target


@keras.saving.register_keras_serializable("tf_transformer")
class SSRUTransformer(MarianTransformer):
    """A `MarianTransformer` with an SSRU decoder: logits = model((source, target)).

    Positions and layer normalization are exactly Marian's. As in Marian, a search never chooses the unknown token.

    Args:
        config: An `SSRUConfig`.
    """

    config: SSRUConfig
    config_class = SSRUConfig

    def __init__(self, config: MarianConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        options = {"use_bias": True, "name": "output_embedding"}
        self.output_embedding = None if self.config.tied_output else self._embedding(config.vocab_size, **options)

    def make_embedding(self) -> PositionalEmbedding:
        return self._embedding(self.config.vocab_size, use_bias=self.config.tied_output, name="embedding")

    def embedding_options(self) -> dict[str, Any]:
        return super().embedding_options() | {"positions": "fairseq"}  # 10000^(-i / (d / 2 - 1))

    def make_encoder_layers(self) -> list[EncoderLayer]:
        options = self.layer_options() | {"ffn_depth": self.config.ffn_depth}
        return [MarianEncoderLayer(**options, name=f"encoder_{i}") for i in range(self.config.num_layers)]

    def make_decoder_layers(self) -> list[DecoderLayer]:
        options = self.decoder_options() | {"ffn_depth": self.config.decoder_ffn_depth}
        return [SSRUDecoderLayer(**options, name=f"decoder_{i}") for i in range(self.config.decoder_layers)]

    def layer_options(self) -> dict[str, Any]:
        config = self.config
        return super().layer_options() | {"preprocess": config.preprocess, "postprocess": config.postprocess}

    def make_norm(self, name: str) -> LayerNormalization | None:
        options = {"epsilon": self.config.epsilon, "name": name, "dtype": self.dtype_policy}
        return LayerNormalization(**options) if self.config.postprocess_top else None

    @property
    def pre_softmax(self) -> PositionalEmbedding:
        return self.embedding if self.output_embedding is None else self.output_embedding

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        if self.output_embedding is not None:
            self.output_embedding.build((None, None))

    def decode_step(self, *args: Any, **kwargs: Any) -> Any:
        logits, *others = super().decode_step(*args, **kwargs)
        return ops.where(ops.arange(ops.shape(logits)[-1], dtype="int32") == UNKNOWN_ID, -1e9, logits), *others


# Mozilla's students.
FIREFOX = SSRUConfig(
    num_layers=6,
    num_decoder_layers=2,
    d_model=256,
    d_ff=1536,
    decoder_d_ff=1536,
    activation="relu",
    vocab_size=32_000,
)
PRESETS = {"firefox": FIREFOX, "firefox_large": replace(FIREFOX, num_decoder_layers=4, d_model=384)}


def names_of(model: SSRUTransformer) -> Iterator[tuple[str, keras.Variable]]:
    """Yields the variables of both stacks, without embeddings, by their names in Marian's files."""

    def of_dense(prefix: str, suffix: Any, layer: Any) -> Iterator[tuple[str, keras.Variable]]:
        yield f"{prefix}_W{suffix}", layer.kernel
        if layer.use_bias:
            yield f"{prefix}_b{suffix}", layer.bias

    def of_norms(before: str, after: str, layer: Any) -> Iterator[tuple[str, keras.Variable]]:
        for prefix, suffix, norm in ((before, "_pre", layer.input_norm), (after, "", layer.norm)):
            if norm is not None:
                yield from of_norm(prefix, suffix, norm)

    def of_norm(prefix: str, suffix: str, norm: Any) -> Iterator[tuple[str, keras.Variable]]:
        yield f"{prefix}_ln_scale{suffix}", norm.gamma
        yield f"{prefix}_ln_bias{suffix}", norm.beta

    for side, top in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        layers: list[Any] = getattr(model, f"{side}_layers")
        for number, layer in enumerate(layers, 1):
            start = f"{side}_l{number}"
            for part, name in (("self", "self_attention"), ("context", "cross_attention")):
                unit = getattr(layer, name, None)
                if isinstance(unit, SSRU):
                    yield from of_dense(f"{start}_rnn", "", unit.input_projection)
                    yield from of_dense(f"{start}_rnn", "f", unit.forget_gate)
                    yield from of_norms(f"{start}_rnn", f"{start}_rnn_ffn", layer.self_attention_norm)
                elif unit is not None:
                    prefix = f"{start}_{part}"
                    for letter, projection in zip("qkvo", ("query", "key", "value", "output"), strict=True):
                        yield from of_dense(prefix, letter, getattr(unit, f"{projection}_projection"))
                    yield from of_norms(f"{prefix}_Wo", f"{prefix}_Wo", getattr(layer, f"{name}_norm"))
            network = layer.feed_forward
            for k, one in enumerate([*network.hidden_layers, network.output_projection], 1):
                yield from of_dense(f"{start}_ffn", k, one)
            yield from of_norms(f"{start}_ffn_ffn", f"{start}_ffn_ffn", layer.feed_forward_norm)
        if top is not None:
            yield from of_norm(f"{side}_top", "", top)


FAMILY = Family("ssru", SSRUConfig, SSRUTransformer, Tokenizer)
