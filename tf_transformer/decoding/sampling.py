"""Random sampling of outputs, with the decoding step of the search. The paper does not sample."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from keras import ops

from tf_transformer.decoding.beams import RULES, Hypotheses, Prefixes, restricted
from tf_transformer.decoding.primitives import (
    NEG_INF,
    AnyTensor,
    gather,
    least,
    size,
    sorted_top_k,
)
from tf_transformer.decoding.search import SearchProblem
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, Natural, Positive, Seed, checked, span


@checked
def uniforms_of(seed: Seed, rows: Sequence[int], length: Natural) -> np.ndarray:
    """Returns the uniform random numbers that sample the tokens of each row: float32 [B, L], in [0, 1).

    They depend on the seed and on the row's index in the whole list, so that a row's output does not depend on the
    batch. A longer row begins like a shorter one.

    Args:
        seed: Any whole number.
        rows: Index of each row in the whole list.
        length: L.
    """
    return np.stack([np.random.default_rng((seed, row)).random(length, "float32") for row in rows])


@checked
def sample(
    problem: SearchProblem,
    uniforms: Tensor,
    temperature: Positive | AnyTensor = 1.0,
    k: Count | AnyTensor | None = None,
    widest: Count | None = None,
    p: Annotated[float, span(0, 1)] | None = None,
    **options: Tensor,
) -> Hypotheses:
    """Samples an output for each sentence, token by token, from softmax(logits / temperature) of the k likeliest ones.

    Args:
        problem: Decoder, start tokens and maximum lengths.
        uniforms: Uniforms [B, L] from `uniforms_of`, where L is at least the longest output.
        temperature: float32 above 0. Near 0 it samples the likeliest token.
        k: Number of tokens to choose from. `None` means all.
        widest: Upper bound of k, where shapes are fixed and k is a tensor.
        p: Probability mass of the likeliest tokens to choose from (Holtzman et al. 2020). `None` means all.
        options: Options of a search that `beams.RULES` names, such as min_length, each a number or int32 [B].

    Returns:
        `Hypotheses` with N = 1. Scores and log-probabilities are the model's own, at temperature 1.
    """
    decoder, start_ids, max_length, end_id = problem
    B, L = size(start_ids, 0), size(uniforms, 1)
    max_length = ops.cast(max_length, "int32")
    rules = {name: options.get(name, SEARCH_OPTIONS[name].default) for name in RULES}
    rules = {name: ops.broadcast_to(ops.cast(value, "int32"), (B,)) for name, value in rules.items()}
    rules["min_length"] = ops.minimum(rules["min_length"], max_length)
    uniforms = ops.convert_to_tensor(uniforms, "float32")
    index = ops.arange(L, dtype="int32")

    def step(*state: Any) -> Any:
        position, newest, ids, log_probs, lengths, running, finished, cache = state
        ancestry = ops.broadcast_to(index <= position, (B, 1, L))
        logits, cache, *_ = decoder.step(newest[:, None], position, position, ancestry, cache)
        logits = ops.cast(logits, "float32")  # [B, 1, V]
        possible = restricted(logits, Prefixes(ids[:, None], position, end_id), rules)[:, 0]
        logits = logits[:, 0]
        uniform = gather(uniforms, position, axis=1)
        if k is None and p is None:
            newest = _sampled(possible, temperature, uniform)
        else:
            most = size(possible, 1) if k is None else least(k if widest is None else widest, size(possible, 1))
            top_logits, tokens = sorted_top_k(possible, most)
            if widest is not None:
                top_logits = ops.where(ops.arange(most, dtype="int32") < k, top_logits, NEG_INF)
            if p is not None:
                probabilities = ops.softmax(top_logits / ops.cast(temperature, "float32"))
                before = ops.cumsum(probabilities, axis=1) - probabilities  # 0 for the likeliest token
                top_logits = ops.where((before < p) | (ops.arange(most) == 0), top_logits, NEG_INF)
            newest = gather(tokens, _sampled(top_logits, temperature, uniform), batch_dims=1)
        log_prob = gather(logits, newest, batch_dims=1) - ops.logsumexp(logits, axis=1)
        ids = ops.where((index == position) & running[:, None], newest[:, None], ids)
        log_probs = log_probs + ops.where(running, log_prob, 0.0)
        lengths = lengths + ops.cast(running, "int32")
        finished = finished | (running & (newest == end_id))
        running = running & ~finished & (lengths < max_length)
        return position + 1, newest, ids, log_probs, lengths, running, finished, cache

    zeros, none_yet = ops.zeros((B,), "int32"), ops.zeros((B, L), "int32")
    # One token per step needs neither beams nor growth: the cache has all L slots from the start.
    cache = decoder.keep(decoder.cache, none_yet)
    first = (ops.zeros((), "int32"), start_ids, none_yet, ops.zeros((B,), "float32"), zeros, max_length > 0, zeros > 0)
    _, _, *results, _, finished, _ = ops.while_loop(lambda *state: ops.any(state[5]), step, (*first, cache))
    ids, log_probs, lengths = (part[:, None] for part in results)
    return Hypotheses(decoder.tokens(ids), log_probs, log_probs, lengths, finished[:, None])


def _sampled(logits: Tensor, temperature: Tensor, uniform: Tensor) -> Any:
    """Returns the first token at which the cumulative softmax(logits [B, V] / temperature) exceeds uniform [B]."""
    below = logits - ops.max(logits, axis=1, keepdims=True)  # 0 at the likeliest
    scaled = ops.where(below < NEG_INF / 2, float(np.finfo("float32").min), below / ops.cast(temperature, "float32"))
    total = ops.cumsum(ops.softmax(scaled), axis=1)
    token = ops.sum(ops.cast(total <= uniform[:, None] * total[:, -1:], "int32"), axis=1)
    return ops.minimum(token, size(logits, 1) - 1)
