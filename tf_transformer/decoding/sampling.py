"""Random sampling of outputs, with the same decoding step as the search. The paper does not sample."""

from typing import Any

import numpy as np
from keras import ops

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.logits import RULES, Prefixes, restricted
from tf_transformer.decoding.primitives import IMPOSSIBLE, ON_TENSORFLOW, AnyTensor, gather, least, size, sorted_top_k
from tf_transformer.decoding.search import SearchProblem
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, Natural, Positive, Seed, checked

WIDE = "float64" if ON_TENSORFLOW else "float32"  # Keras sums in 32 bits elsewhere


@checked
def seeds_of(seed: Seed, rows: Natural) -> np.ndarray:
    """A seed of each row of a list, of one seed for all: uint64 [rows].

    It depends on the seed and the row's place alone, so that a row's output does not depend on how the list is batched.
    """
    return np.random.PCG64(seed).random_raw(rows)


@checked
def chances_of(seeds: np.ndarray, length: Natural) -> np.ndarray:
    """The numbers in [0, 1) that draw the symbols of each row, for `sample`: float64 [B, L].

    They are SplitMix64's (Steele et al. 2014): each row has a stream of its own, and a longer one begins like a shorter
    one.

    Args:
        seeds: uint64 [B], such as those of `seeds_of`; equal seeds give equal numbers.
        length: L.
    """

    def mixed(bits: np.ndarray, shift: int, factor: int = 1) -> np.ndarray:
        return (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)

    numbers = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = mixed(seeds.astype(np.uint64)[:, None] + numbers, 30, 0xBF58476D1CE4E5B9)
    bits = mixed(mixed(bits, 27, 0x94D049BB133111EB), 31)
    return (bits >> np.uint64(11)) * 2.0**-53


@checked
def sample(
    problem: SearchProblem,
    chances: Tensor,
    temperature: Positive | AnyTensor = 1.0,
    k: Count | AnyTensor | None = None,
    widest: Count | None = None,
    **options: Tensor,
) -> Hypotheses:
    """Sample an output for each sentence, symbol by symbol, from softmax(logits / temperature) of the k likeliest ones.

    Rows that begin alike have independent outputs if their chances differ, and a row's output is the same in every
    batch.

    Args:
        problem: the model's step, and the beginning of each row.
        chances: [B, L] from `chances_of`, where L is at least the longest output.
        temperature: float32 above 0; near 0 it draws the likeliest symbol.
        k: the number of symbols to choose from; `None` means all.
        widest: a number that k is at most, where shapes are fixed and k is a tensor.
        options: int32, each a number or [B]: those of a search that `logits.RULES` names, such as min_length.

    Returns:
        `Hypotheses` with N = 1. Log-probabilities are the model's own, at temperature 1, and scores equal them.
    """
    decoder, start_ids, max_length, end_id = problem
    B, L = size(start_ids, 0), size(chances, 1)
    max_length = ops.cast(max_length, "int32")
    rules = {
        name: ops.broadcast_to(ops.cast(options.get(name, SEARCH_OPTIONS[name].default), "int32"), (B,))
        for name in RULES
    }
    rules["min_length"] = ops.minimum(rules["min_length"], max_length)
    chances = ops.convert_to_tensor(chances, WIDE)
    chances = ops.minimum(chances, 1 - float(np.finfo(WIDE).epsneg))  # below 1 after rounding, too
    places = ops.arange(L, dtype="int32")

    def draw(
        position: Tensor,
        newest: Tensor,
        ids: Tensor,
        log_probs: Tensor,
        lengths: Tensor,
        running: Tensor,
        finished: Tensor,
        cache: Any,
    ) -> Any:
        seen = ops.broadcast_to(places <= position, (B, 1, L))
        logits, cache, *_ = decoder.step(newest[:, None], position, position, seen, cache)
        logits = ops.cast(logits, "float32")
        possible = restricted(logits, Prefixes(ids[:, None], position, end_id), rules)[:, 0]
        logits = logits[:, 0]  # [B, V]
        chance = gather(chances, position, axis=1)
        if k is None:
            newest = _drawn(possible, temperature, chance)
        else:
            most = least(k if widest is None else widest, size(possible, 1))
            top_logits, symbols = sorted_top_k(possible, most)
            if widest is not None:
                top_logits = ops.where(ops.arange(most, dtype="int32") < k, top_logits, IMPOSSIBLE)
            newest = gather(symbols, _drawn(top_logits, temperature, chance), batch_dims=1)
        log_prob = gather(logits, newest, batch_dims=1) - ops.logsumexp(logits, axis=1)
        ids = ops.where((places == position) & running[:, None], newest[:, None], ids)
        log_probs = log_probs + ops.where(running, log_prob, 0.0)
        lengths = lengths + ops.cast(running, "int32")
        finished = finished | (running & (newest == end_id))
        running = running & ~finished & (lengths < max_length)
        return position + 1, newest, ids, log_probs, lengths, running, finished, cache

    none = ops.zeros((B,), "int32")
    loop = (
        ops.zeros((), "int32"),
        start_ids,
        ops.zeros((B, L), "int32"),
        ops.zeros((B,), "float32"),
        none,
        max_length > 0,
        none > 0,
    )
    _, _, *found, _, finished, _ = ops.while_loop(
        lambda *state: ops.any(state[5]),
        draw,
        (*loop, decoder.keep(decoder.cache, ops.zeros((B, L), "int32"))),
    )
    ids, log_probs, lengths = (part[:, None] for part in found)
    return Hypotheses(ids, log_probs, log_probs, lengths, finished[:, None])


def _drawn(logits: Tensor, temperature: Tensor, chance: Tensor) -> Any:
    """The first symbol up to which softmax(logits [B, V] / temperature) adds up to more than chance [B]: int32 [B].

    In float64 on TensorFlow, since the probabilities of a large vocabulary's rare symbols are below the
    steps of float32.
    """
    below = ops.cast(logits - ops.max(logits, axis=1, keepdims=True), WIDE)  # 0 at the likeliest
    heated = ops.where(below < IMPOSSIBLE / 2, float(np.finfo(WIDE).min), below / ops.cast(temperature, WIDE))
    total = ops.cumsum(ops.softmax(heated), axis=1)
    symbol = ops.sum(ops.cast(total <= chance[:, None] * total[:, -1:], "int32"), axis=1)
    return ops.minimum(symbol, size(logits, 1) - 1)
