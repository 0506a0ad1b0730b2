"""Decoder-only models: a stack of `DecoderLayer`s without memory, trained as a whole and decoded with a cache."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.decoder import AppendedKeyValue, FixedKeyValue, InPlaceKeyValue
from tf_transformer.decoding.primitives import NEG_INF, ON_TENSORFLOW, compiled, gather, input_signature, rounded, size
from tf_transformer.decoding.search import OPTIONS, Decoder, Fixed, SearchProblem, beam_search
from tf_transformer.decoding.search_options import SearchOptions
from tf_transformer.decoding.text_model import padded
from tf_transformer.extensions.text_models.sampling import sample, uniforms_of
from tf_transformer.layers import DecoderCache, DecoderLayer, KeyValue, PositionalEmbedding
from tf_transformer.masks import PAD_ID, causal_mask
from tf_transformer.tokenizers.tokenizer import EOS_ID
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Count, Natural, Positive, Seed, checked, shown, span

MOST_FUNCTIONS = 32  # limit of compiled functions. A new one replaces the oldest


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


class LanguageModel:
    """Decoder-only Transformer, built from layers.

    A call maps ids to logits, for training and in a functional model. `search` and `sample` continue prompts with a
    cache.

    Args:
        embedding: Layer from ids `(B, T)` to vectors `(B, T, d)`, usually a `PositionalEmbedding`.
        layers: `DecoderLayer`s, which are called without memory.
        norm: Layer after the last one, usual with `norm_first=True`.
        head: Layer from vectors to logits `(B, T, V)`. Defaults to the embedding's table (section 3.4).

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
    ) -> None:
        if not isinstance(layers, list | tuple) or not layers or not all(isinstance(x, DecoderLayer) for x in layers):
            raise BadInput(f"layers: expected a list of DecoderLayers, got {shown(layers)}")
        self.embedding, self.layers, self.norm, self.head = embedding, list(layers), norm, head
        self._functions: dict[Any, Callable[..., Any]] = {}
        if head is None and not isinstance(embedding, keras.layers.ReversibleEmbedding):
            raise BadInput(f"head: expected a layer that returns logits, since {embedding.name} shares no table")

    @property
    def weights(self) -> list[keras.Variable]:
        """Weights of all layers."""
        parts = [self.embedding, *self.layers, *filter(None, (self.norm, self.head))]
        return [weight for part in parts for weight in part.weights]

    def __call__(self, ids: Tensor, training: bool | None = None) -> Any:
        """Maps ids `(B, T)` to the logits of each next token, float32 `(B, T, V)`."""
        x = self.embedding(ids, training=training)
        for layer in self.layers:
            x = layer(x, training=training)
        return self._logits(x)

    def _logits(self, x: Tensor) -> Any:
        x = x if self.norm is None else self.norm(x)
        return self.embedding(x, reverse=True) if self.head is None else self.head(x)

    def decoder(self, prompts: Tensor, length: Tensor, fixed: Fixed | None = None) -> Decoder:
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
            for layer, target in zip(self.layers, targets, strict=True):
                x, new = layer(x, cache=DecoderCache(target, None), slot=slot + P, attention_mask=mask)
                written.append(new.target)
            logits = self._logits(x)
            # Losses that ignore padding leave its logit to chance.
            is_padding = ops.arange(logits.shape[-1], dtype="int32") == PAD_ID
            return ops.where(is_padding, NEG_INF, ops.cast(logits, "float32")), (visible, length, written)

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
        layer = self.embedding
        embeddings = layer.rows(ids) * layer.d_model**0.5 if layer.scale else layer.rows(ids)
        return ops.cast(embeddings + ops.expand_dims(layer.encoding(position), 1), layer.compute_dtype)

    def problem(self, prompts: Tensor, length: Tensor, max_length: Count, beams: Count, end_id: int) -> SearchProblem:
        """Returns the problem for `tt.decoding.beam_search` and `sample`. See `decoder` for the arguments."""
        fixed = None if ON_TENSORFLOW else Fixed(beams, max_length)
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
        for row in rows:
            if row.dtype.kind not in "iu" or row.ndim != 1 or row.min() <= PAD_ID or row.max() >= size:
                raise BadInput(f"prompts: expected ids from 1 to {size - 1:,}, got {shown(row.tolist())}")
        longest = max(map(len, rows))
        table = getattr(self.embedding, "max_length", 0) if getattr(self.embedding, "positions", "") == "learned" else 0
        if table and longest - 1 + max_length > table:
            raise BadInput(
                f"prompts: expected at most {table} learned positions for prompt and continuation, "
                f"got {longest:,} + {max_length:,}. Shorten the prompts or lower max_length"
            )
        ids = padded([row.tolist() for row in rows], rounded(longest, 2, table or None))
        return ids, np.array(list(map(len, rows)), np.int32)

    def _continued(
        self, key: Any, function: Callable[..., Hypotheses], columns: Sequence[np.ndarray], end_id: int
    ) -> list[list[Continuation]]:
        # A compiled function reads the weights that there were, and LoRA adds some.
        key = *key, *map(id, self.weights)
        if key not in self._functions:
            if len(self._functions) >= MOST_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[key] = compiled(function, self.weights, **input_signature(columns))
        columns = [ops.convert_to_numpy(part).tolist() for part in self._functions[key](list(columns))]
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
