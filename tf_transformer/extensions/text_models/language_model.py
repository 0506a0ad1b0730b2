"""Decoder-only models: a stack of `DecoderLayer`s without memory, trained as a whole and decoded with a cache."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.decoder import AppendedKeyValue, FixedKeyValue, InPlaceKeyValue
from tf_transformer.decoding.primitives import NEG_INF, ON_TENSORFLOW, compiled, gather, input_signature, rounded, size
from tf_transformer.decoding.sampling import sample, uniforms_of
from tf_transformer.decoding.search import OPTIONS, Decoder, FixedShapes, SearchProblem, beam_search
from tf_transformer.decoding.search_options import SearchOptions
from tf_transformer.decoding.tensor_translator import padded
from tf_transformer.layers import DecoderCache, DecoderLayer, KeyValue, PositionalEmbedding
from tf_transformer.masks import PAD_ID, causal_mask
from tf_transformer.tokenizers.tokenizer import EOS_ID
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput, Count, Natural, Positive, Seed, checked, shown, span

MOST_FUNCTIONS = 32  # limit of compiled functions. A new one replaces the oldest


class Functions:
    """Compiled functions. A dictionary would be tracked by Keras, and by TensorFlow in an export."""

    def __init__(self) -> None:
        self.by_key: dict[Any, Callable[..., Any]] = {}


class Continuation(NamedTuple):
    """Token ids that follow a prompt.

    Attributes:
        ids: Token ids, without EOS.
        score: Log-probability / length penalty.
        log_prob: Log-probability, that of EOS included.
        finished: Whether EOS was reached.
    """

    ids: list[int]
    score: float
    log_prob: float
    finished: bool


@keras.saving.register_keras_serializable("tf_transformer")
class LanguageModel(keras.layers.Layer):
    """Decoder-only Transformer, built from layers.

    It is a layer from ids `(B, T)` to the logits of each next token `(B, T, V)`, for a model that is trained. `search`
    and `sample` continue prompts with a cache. A model's `.keras` file keeps both.

    Args:
        embedding: Layer from ids `(B, T)` to vectors `(B, T, d)`, usually a `PositionalEmbedding`. Id 0 is padding,
            which is never searched, unless it has `mask_zero=False`. In another layer, a token's vector must not depend
            on its position.
        layers: `DecoderLayer`s, which are called without memory.
        norm: Layer after the last one, usual with `norm_first=True`.
        head: Layer from vectors to logits `(B, T, V)`. Defaults to the embedding's table (section 3.4).
        kwargs: Arguments of `keras.layers.Layer`.

    Examples:
        >>> embedding = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)
        >>> model = tt.LanguageModel(embedding, [tt.layers.DecoderLayer(num_heads=4, d_ff=64) for _ in range(2)])
        >>> ids = keras.Input((None,), dtype="int32")
        >>> trained = keras.Model(ids, model(ids))
        >>> trained.compile("adam", tt.SmoothedCrossEntropy(0.1))
        >>> model.search([[1, 5, 6]], max_length=7, beam_size=4)[0][0].ids  # after trained.fit(...)
        [8, 9, 4, 4, 6, 6, 7]
    """

    def __init__(
        self,
        embedding: keras.layers.Layer,
        layers: Sequence[DecoderLayer],
        norm: keras.layers.Layer | None = None,
        head: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(layers, list | tuple) or not layers or not all(isinstance(x, DecoderLayer) for x in layers):
            raise BadInput(f"layers: expected a list of DecoderLayers, got {shown(layers)}")
        if head is None and not isinstance(embedding, keras.layers.ReversibleEmbedding):
            raise BadInput(f"head: expected a layer that returns logits, since {embedding.name} shares no table")
        super().__init__(**kwargs)
        self.supports_masking = True
        # Ids that arrive as floats would be rounded to the compute dtype.
        self.autocast = False
        self.embedding, self.layers, self.norm, self.head = embedding, list(layers), norm, head
        for part in self._parts() if not self.trainable else ():
            part.trainable = False
        self._functions = Functions()

    def __call__(self, ids: Tensor, training: bool | None = None) -> Any:
        if not self.built:
            self._build_parts()  # here, outside of this layer's scope of names
        return super().__call__(ids, training=training)

    def build(self, ids_shape: Shape) -> None:
        self._build_parts()

    def _build_parts(self) -> None:
        if not all(part.built for part in self._parts()):
            self._whole(keras.KerasTensor((None, None), "int32"))

    def _parts(self) -> list[keras.layers.Layer]:
        return [self.embedding, *self.layers, *filter(None, (self.norm, self.head))]

    def call(self, ids: Tensor, training: bool | None = None) -> Any:
        return self._whole(ids, training)

    def compute_output_spec(self, ids: Tensor, training: bool | None = None) -> Any:
        # Layer by layer: traced on JAX and PyTorch, ids of unknown length would have 83, perhaps more than the learned
        # positions.
        logits = self._whole(keras.KerasTensor(ids.shape, ids.dtype))
        return keras.KerasTensor(logits.shape, logits.dtype)

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        # Its layers are rematerialized one by one. All at once would save no memory.
        return layer_call

    def _whole(self, ids: Tensor, training: bool | None = None) -> Any:
        x = self.embedding(ids, training=training)
        for layer in self.layers:
            x = layer(x, training=training)
        return self._logits(x)

    # Keras's files.

    def get_config(self) -> dict[str, Any]:
        """Returns the config. A layer that occurs several times in `layers` is stored once."""
        serialize = keras.saving.serialize_keras_object
        unique = {id(layer): layer for layer in self.layers}
        order = [[*unique].index(id(layer)) for layer in self.layers]
        ends = {name: part and serialize(part) for name, part in (("norm", self.norm), ("head", self.head))}
        layers = {"layers": [serialize(layer) for layer in unique.values()], "order": order}
        return super().get_config() | {"embedding": serialize(self.embedding), **layers, **ends}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LanguageModel":
        config = dict(config)
        order, layers = config.pop("order"), config.pop("layers")
        parts = {name: config.pop(name) for name in ("embedding", "norm", "head")}
        made = {name: part and keras.saving.deserialize_keras_object(part) for name, part in parts.items()}
        layers = [keras.saving.deserialize_keras_object(layer) for layer in layers]
        return cls(layers=[layers[i] for i in order], **made, **config)

    def __dir__(self) -> list[str]:
        # Keras stores the layers that it finds here. `save_own_variables` stores these.
        return [name for name in super().__dir__() if name not in ("embedding", "layers", "norm", "head")]

    def _stored_layers(self) -> list[keras.layers.Layer]:
        return [layer for layer in self._flatten_layers(include_self=False) if layer is not self and layer.weights]

    def save_own_variables(self, store: Any) -> None:
        for number, layer in enumerate(self._stored_layers()):
            variables = dict[str, Any]()
            layer.save_own_variables(variables)
            for name, variable in variables.items():
                store[f"{number}.{name}"] = variable

    def load_own_variables(self, store: Any) -> None:
        names = list(store.keys())
        if not names and (file := getattr(store, "h5_file", None)):
            # In earlier versions, the layers were those of the model around.
            ids = keras.Input((None,), dtype="int32")
            return keras.Model(ids, self._whole(ids)).load_weights(file.filename)
        layers = dict(enumerate(self._stored_layers()))
        by_layer: dict[int, dict[str, Any]] = {number: {} for number in layers}
        for stored in names:
            number, _, name = stored.partition(".")
            if not number.isdecimal() or int(number) not in layers:
                raise ValueError(f"{self.name}: expected the weights of {len(layers)} layers, got {stored}")
            by_layer[int(number)][name] = store[stored]
        for number, variables in by_layer.items():
            layers[number].load_own_variables(variables)

    def _logits(self, x: Tensor) -> Any:
        x = x if self.norm is None else self.norm(x)
        return self.embedding(x, reverse=True) if self.head is None else self.head(x)

    def decoder(self, prompts: Tensor, length: Tensor, fixed: FixedShapes | None = None) -> Decoder:
        """Returns the step of a search, after the layers have read the prompts.

        Args:
            prompts: Token ids, int32 `(B, P)`, at least one per row, then zeros.
            length: Number of tokens per row, int32 `(B,)`.
            fixed: Fixed shapes of the search. `None`, on TensorFlow only, lets rows leave and the cache grow.
        """
        P = size(prompts, 1)
        key_value: type[KeyValue] = FixedKeyValue if fixed else InPlaceKeyValue
        x, caches = self._embedded(prompts, None), list[KeyValue]()
        for layer in self.layers:
            # Causality hides the zeros behind a prompt from its tokens, and `visible` hides them from the search.
            cache = DecoderCache(AppendedKeyValue(*layer.init_cache(x=x).target), None)
            x, cache = layer(x, cache=cache, attention_mask=causal_mask(P))
            caches.append(key_value(*cache.target))
        # The search feeds the last token of each prompt again, to get its logits at step 0.
        visible = ops.expand_dims(ops.arange(P, dtype="int32") < ops.expand_dims(length - 1, 1), 1)  # (B, 1, P)

        def step(ids: Tensor, position: Tensor, slot: Tensor, ancestry: Tensor, cache: Any) -> tuple[Any, Any]:
            visible, length, targets = cache
            shape = ops.shape(ancestry)
            mask = ops.concatenate([ops.broadcast_to(visible, (shape[0], shape[1], P)), ancestry], axis=2)
            x, written = self._embedded(ids, length - 1 + position), []
            positions = ops.broadcast_to(ops.expand_dims(length - 1 + position, 1), ops.shape(ids))
            for layer, target in zip(self.layers, targets, strict=True):
                cached = {"cache": DecoderCache(target, None), "slot": slot + P, "attention_mask": mask}
                x, new = layer(x, positions=positions, **cached)
                written.append(new.target)
            logits = self._logits(x)
            logits = ops.cast(logits, "float32")
            if self._has_padding:  # Losses that ignore padding leave its logit to chance.
                logits = ops.where(ops.arange(logits.shape[-1], dtype="int32") == PAD_ID, NEG_INF, logits)
            return logits, (visible, length, written)

        def keep(cache: Any, slots: Tensor) -> Any:
            *of_rows, targets = cache
            last = ops.shape(targets[0].key)[2] - 1  # at first there are only the prompt's slots to copy
            prompt = ops.broadcast_to(ops.arange(P, dtype="int32"), (ops.shape(slots)[0], P))
            kept = ops.minimum(ops.concatenate([prompt, slots + P], axis=1), last)
            return *of_rows, [
                key_value(*(gather(part, kept, axis=2, batch_dims=1) for part in target)) for target in targets
            ]

        return Decoder(step, (visible, length, caches), keep, fixed)

    def _embedded(self, ids: Tensor, position: Tensor) -> Any:
        """Embeds ids `(B, T)`, all of a row at its position `(B,)`, or at 0 to T - 1 if `position` is `None`."""
        if position is None or not isinstance(self.embedding, PositionalEmbedding):
            return self.embedding(ids, training=False)
        layer: Any = self.embedding
        embeddings = layer.rows(ids) * layer.d_model**0.5 if layer.scale else layer.rows(ids)
        return ops.cast(embeddings + ops.expand_dims(layer.encoding(position), 1), layer.compute_dtype)

    @property
    def _has_padding(self) -> bool:
        return not isinstance(self.embedding, PositionalEmbedding) or self.embedding.mask_zero

    def _check_embedding(self, tokens: Sequence[int]) -> None:
        """Raises BadInput unless tokens have the same vectors one by one, as in a search, as in a whole sequence."""
        if type(self.embedding) is PositionalEmbedding:
            return
        ids: Any = np.resize(np.asarray(tokens[:64], np.int32), max(2, len(tokens[:64])))
        positions = np.arange(len(ids), dtype=np.int32)
        try:
            whole, single = (
                ops.convert_to_numpy(ops.cast(vectors, "float32"))
                for vectors in (self._embedded(ids[None], None)[0], self._embedded(ids[:, None], positions)[:, 0])
            )
            is_half = keras.backend.standardize_dtype(self.embedding.compute_dtype) in ("float16", "bfloat16")
            is_right = np.allclose(whole, single, rtol=0, atol=(2e-2 if is_half else 1e-5) * np.abs(whole).max())
        except Exception:  # such as positions that are too few for these ids
            is_right = False
        if not is_right:
            expected = "expected a PositionalEmbedding, or vectors that do not depend on a token's position"
            action = "A search embeds each new token without the earlier ones."
            raise BadInput(f"embedding: {expected}, got {self.embedding.name}, whose vectors depend on it. {action}")

    def problem(self, prompts: Tensor, length: Tensor, max_length: Count, beams: Count, end_id: int) -> SearchProblem:
        """Returns the problem for `tt.decoding.beam_search` and `sample`. See `decoder` for the arguments."""
        fixed = None if ON_TENSORFLOW else FixedShapes(beams, max_length)
        start = gather(prompts, length - 1, batch_dims=1)
        limit = ops.broadcast_to(ops.convert_to_tensor(max_length, "int32"), (ops.shape(prompts)[0],))
        return SearchProblem(self.decoder(prompts, length, fixed), start, limit, end_id)

    @checked
    def search(
        self,
        prompts: Sequence[Sequence[int]],
        max_length: Count = 64,
        n_best: Count = 1,
        end_id: Natural = EOS_ID,
        **options: Any,
    ) -> list[list[Continuation]]:
        """Continues prompts by beam search.

        Args:
            prompts: Token ids, at least one per prompt.
            max_length: Maximum number of new tokens, EOS included.
            n_best: Number of continuations per prompt, best first.
            end_id: Id of EOS.
            options: Options of `tt.decoding.beam_search`, such as `beam_size=1` for greedy search.

        Raises:
            BadInput: If a prompt is empty, has an id outside the vocabulary, or is longer than the learned positions
                allow, or if the layers are not built.
        """
        beams = beams_of(n_best, options)

        def searched(columns: Sequence[Tensor]) -> Hypotheses:
            ids, length = columns
            return beam_search(self.problem(ids, length, max_length, beams, end_id), n_best=n_best, **options)

        key = "search", max_length, n_best, end_id, *sorted(options.items())
        return self._continued(key, searched, self.padded(prompts, max_length), end_id)

    @checked
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_length: Count = 64,
        seed: Seed = 0,
        temperature: Positive = 1.0,
        k: Count | None = None,
        p: Annotated[float, span(0, 1)] | None = None,
        end_id: Natural = EOS_ID,
    ) -> list[list[Continuation]]:
        """Continues prompts by sampling.

        Args:
            prompts: Token ids, at least one per prompt.
            max_length: Maximum number of new tokens, EOS included.
            seed: Random seed. A prompt's continuation depends on the seed and on its index.
            temperature: Divides the logits. Near 0, sampling becomes greedy search.
            k: Number of likeliest tokens to sample from.
            p: Probability mass of the likeliest tokens to sample from.
            end_id: Id of EOS.
        """

        def sampled(columns: Sequence[Tensor]) -> Hypotheses:
            ids, length, uniforms = columns
            return sample(self.problem(ids, length, max_length, 1, end_id), uniforms, temperature=temperature, k=k, p=p)

        uniforms = uniforms_of(seed, range(len(prompts)), max_length)
        key = "sample", max_length, temperature, k, p, end_id
        return self._continued(key, sampled, (*self.padded(prompts, max_length), uniforms), end_id)

    def padded(self, prompts: Sequence[Sequence[int]], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Checks prompts and the layers, and returns padded ids and lengths."""
        if not all(layer.built for layer in (self.embedding, *self.layers)):
            raise BadInput("layers: expected built layers. Call the model on ids, or train it, before a search")
        if not len(prompts) or not all(isinstance(row, list | tuple | np.ndarray) and len(row) for row in prompts):
            raise BadInput(f"prompts: expected lists of at least one id, such as BOS, got {shown(prompts)}")
        rows, size = [np.asarray(row) for row in prompts], getattr(self.embedding, "input_dim", 2**31)
        lowest = PAD_ID + 1 if self._has_padding else 0
        for row in rows:
            if row.dtype.kind not in "iu" or row.ndim != 1 or row.min() < lowest or row.max() >= size:
                raise BadInput(f"prompts: expected ids from {lowest} to {size - 1:,}, got {shown(row.tolist())}")
        longest = max(map(len, rows))
        table = getattr(self.embedding, "num_positions", None)
        if table and longest - 1 + max_length > table:
            raise BadInput(
                f"prompts: expected at most {table} learned positions for prompt and continuation, "
                f"got {longest:,} + {max_length:,}. Shorten the prompts or lower max_length"
            )
        self._check_embedding(max((row.tolist() for row in rows), key=len))
        ids = padded([row.tolist() for row in rows], rounded(longest, 2, table or None))
        return ids, np.array(list(map(len, rows)), np.int32)

    def _continued(
        self, key: Any, function: Callable[..., Hypotheses], columns: Sequence[np.ndarray], end_id: int
    ) -> list[list[Continuation]]:
        # A compiled function reads the weights that there were, and LoRA adds some.
        key, functions = (*key, *map(id, self.weights)), self._functions.by_key
        if key not in functions:
            if len(functions) >= MOST_FUNCTIONS:
                functions.pop(next(iter(functions)))
            functions[key] = compiled(function, self.weights, **input_signature(columns))
        columns = [ops.convert_to_numpy(part).tolist() for part in functions[key](list(columns))]
        return [
            [
                Continuation([id for id in row[:length] if id != end_id], score, log_prob, finished)
                for row, score, log_prob, length, finished in zip(*outputs, strict=True)
                if score > NEG_INF / 2  # unused slots have NEG_INF
            ]
            for outputs in zip(*columns, strict=True)
        ]


def beams_of(n_best: int, options: dict[str, Any]) -> int:
    """Checks the options of a search, and returns its beam size."""
    if unknown := options.keys() - set(OPTIONS):
        raise BadInput(f"options: expected {', '.join(OPTIONS)}, got {', '.join(unknown)}")
    beams = SearchOptions(**options).beam_size
    if n_best > beams:
        raise BadInput(f"n_best: expected at most beam_size={beams}, got {n_best}")
    return beams
