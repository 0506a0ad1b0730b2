"""Beam search with length penalty (section 6.1). Greedy search is beam search with one beam.

This module holds the interface of the search, and its loop of fixed shapes. `decoding.beams` is one step, and
`decoding.growing` is TensorFlow's loop, in which sentences leave and the cache grows. Both loops run the same step.
`decoding.decoder` makes a `Decoder` of a `Transformer`.

Axes: B sentences, K beams, L the longest output, C cache slots, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from keras import ops

from tf_transformer.decoding.beams import (
    RULES,
    BeamState,
    Finished,
    Hypotheses,
    Rows,
    Tokens,
    extend,
    penalty,
    results_of,
)
from tf_transformer.decoding.primitives import NEG_INF, AnyTensor, gather, size
from tf_transformer.decoding.search_options import SEARCH_OPTIONS, Beams, options_of
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, checked

if TYPE_CHECKING:
    from tf_transformer.decoding import growing
else:
    growing = lazily("tf_transformer.decoding.growing", "a search whose shapes change")


class FixedShapes(NamedTuple):
    """Shapes of a search in a single loop, which drops no rows."""

    beams: int  # K, at least the widest beam_size
    steps: Any  # L. A row that still runs after the last step gets no output
    # True for an engine whose loops allow a cache that begins empty, to which every step appends its slots. Otherwise
    # the cache has all K * L slots from the start, and no shape changes.
    grows: bool = False


class Decoder(NamedTuple):
    """A model as search and sampling call it: step by step, with a cache.

    `step(ids [B, K], position, slot, ancestry [B, K, C], cache)` takes each beam's newest token. It returns the logits
    [B, K, V] of the next one and the new cache, and for a detailed search also the source position of the highest
    attention, int32 [B, K]. The cache is append-only: the K newest tokens take slots slot to slot + K - 1, and nothing
    is reordered. `ancestry` masks the slots that each beam may see, including its newest one.

    `keep(cache, slots [B, M])` returns the cache with only these slots, in this order. Beams share most of their
    history, so after some steps they see few of the slots.
    """

    step: Callable[..., tuple[Any, ...]]
    cache: Any  # the first, with one free slot: nested tensors [B, ..., slots, d], or without slots
    keep: Callable[[Any, Any], Any]
    fixed: FixedShapes | None = None  # `None` lets rows leave and slots grow, which needs TensorFlow
    # int32 [B, M], if logits are [B, K, M]. The search's ids are then indices of these tokens. Control tokens keep
    # their ids.
    candidates: Any = None

    def tokens(self, ids: Any) -> Any:
        """Returns the tokens of a search's ids [B, N, L]."""
        return ids if self.candidates is None else gather(self.candidates, ids, batch_dims=1)


class SearchProblem(NamedTuple):
    """A decoder and the constraints of B outputs, for search or sampling."""

    decoder: Decoder
    start_ids: Any  # int32 [B], the token before the first
    max_length: Any  # int32 [B], the maximum number of tokens, including EOS. 0 returns the empty output
    end_id: int  # EOS


OPTIONS = tuple(options_of("search"))


@checked
def beam_search(
    problem: SearchProblem,
    *,
    n_best: Beams = 1,
    exact_n: Count | AnyTensor | None = None,
    allowed: Callable[..., Any] | None = None,
    **options: Any,
) -> Hypotheses:
    """Searches for the outputs with the highest score = log-probability / length penalty.

    A sentence's search ends when patience * beam_size outputs have finished (Kasai et al. 2022), when no alive
    hypothesis can beat the last of the `exact_n` best finished ones, or at the maximum length. With one beam it ends at
    the first EOS: that is greedy search. A row's result does not depend on the other rows.

    Args:
        problem: Decoder, start tokens and maximum lengths.
        n_best: N, outputs per sentence. Slots beyond a row's beam size are unused.
        exact_n: int32 scalar. The search settles the first `exact_n` outputs, and the rest are best effort. `None`
            means N. As a tensor, it lets one traced search serve requests for one output and for several.
        allowed: `allowed(ids [B, K, L], position, row [B])` returns a mask of tokens that may follow, bool
            [B, K or 1, V]. `row` holds the rows' indices in the batch, which some may have left. `None` allows all.
        options: Each a number or [B], by the names and with the defaults of `search_options`. K is the widest
            beam_size. min_length is capped at max_length. Infinite patience makes the search exact: it continues until
            no other output can be better. `beams.RULES` implements min_length and no_repeat_ngram_size.

    Returns:
        `Hypotheses` with N = n_best. A row without finished outputs has its unfinished ones.
    """
    return _search(problem, False, n_best, exact_n, allowed, **options)[0]


@checked
def detailed_search(
    problem: SearchProblem, *, n_best: Beams = 1, exact_n: Count | AnyTensor | None = None, **options: Any
) -> tuple[Hypotheses, Tokens]:
    """Like `beam_search`, but also returns each token's log-probability and source position of highest attention."""
    return _search(problem, True, n_best, exact_n, None, **options)


def _search(
    problem: SearchProblem,
    detailed: bool,
    n_best: int,
    exact_n: Tensor,
    allowed: Callable[..., Any] | None,
    **options: Any,
) -> tuple[Hypotheses, Tokens]:
    """Runs the search in the loop that the decoder's shapes allow."""
    # 1. Options get the shape [B], since rows of a served batch may have different options, and rows may leave.
    exact_n = n_best if exact_n is None else exact_n
    B, fixed = size(problem.start_ids, 0), problem.decoder.fixed
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"options of a search: expected {', '.join(OPTIONS)}; got {', '.join(unknown)}")
    by_row = dict[str, Any]()
    for name in OPTIONS:
        option = SEARCH_OPTIONS[name]
        value = options.get(name, option.default)
        # A rule whose option is a number that masks nothing is dropped from the graph.
        if not (name in RULES and isinstance(value, int) and value <= option.lowest):
            by_row[name] = ops.broadcast_to(ops.maximum(ops.cast(value, option.dtype), option.lowest), (B,))
    max_length = ops.cast(problem.max_length, "int32")
    # A longer minimum than the maximum would mask EOS to the end, and no output would finish.
    if "min_length" in by_row:
        by_row["min_length"] = ops.minimum(by_row["min_length"], max_length)
    max_finished = ops.maximum(ops.round(by_row.pop("patience") * ops.cast(by_row["beam_size"], "float32")), 1.0)
    max_penalty = penalty(max_length, by_row["length_penalty"])
    rows = Rows(ops.arange(B, dtype="int32"), max_length, max_finished, max_penalty, by_row)

    # 2. Sizes. For an empty batch, K is 1 and L is 0.
    K, L, grows = fixed or (ops.max(by_row["beam_size"], initial=1), ops.max(max_length, initial=0), False)
    # The first slot, 0, is computed: copies of a constant would go into an exported file, and converters would take the
    # size of an empty cache for fixed.
    first = ops.minimum(rows.max_length, 0)
    C = 0 if not fixed else ops.min(first) if grows else K * L

    # 3. A step: the decoder's, then that of beam search.
    def advance(state: BeamState) -> tuple[BeamState]:
        position, slot = state.position, state.slot
        beam = ops.arange(K, dtype="int32")
        # The newest token of beam k takes slot + k. Besides its history, each beam sees only its own new slot.
        if grows:
            new = ops.broadcast_to(beam == beam[:, None], (B, K, K))
            ancestry = ops.concatenate([state.ancestry, new], axis=2)
        else:
            new = ops.arange(size(state.ancestry, 2), dtype="int32") == (slot + beam)[:, None]  # [K, C]
            ancestry = state.ancestry | new
        logits, cache, *attended = problem.decoder.step(state.newest, position, slot, ancestry, state.cache)
        may_follow = allowed and allowed(ops.split(state.tokens.ids, 2, axis=1)[1], position, state.rows.row_index)
        state = state._replace(slot=slot + K, ancestry=ancestry, cache=cache)
        attention = attended[0] if detailed else None
        return (extend(state, ops.cast(logits, "float32"), may_follow, attention, problem.end_id, exact_n),)

    # 4. The state before the first token, and the loop.
    results = functools.partial(results_of, n_best=n_best, end_id=problem.end_id)
    dtypes = ("int32", "float32", "int32") if detailed else ("int32",)
    zeros = ops.zeros((B, K), "float32")
    state = BeamState(
        position=ops.zeros((), "int32"),
        slot=ops.zeros((), "int32"),
        rows=rows,
        newest=ops.broadcast_to(problem.start_ids[:, None], (B, K)),
        tokens=Tokens(*(ops.zeros((B, 2 * K, L), dtype) for dtype in dtypes)),
        # All beams begin alike, so only the first one counts.
        alive_log_probs=ops.where(ops.arange(K, dtype="int32") == 0, zeros, NEG_INF),
        ancestry=ops.zeros((B, K, C), "bool"),
        lengths=ops.zeros((B,), "int32"),
        best=Finished(zeros + NEG_INF, zeros + NEG_INF),
        finished=ops.zeros((B,), "int32"),
        running=max_length > 0,  # the row of an empty text never runs
        cache=problem.decoder.cache,
    )
    if not fixed:
        return _translated(problem.decoder, *growing.searched(state, advance, results, problem.decoder.keep, L))
    # The decoder's cache has one slot. Copies of it are the C free ones, until they are written.
    slots = ops.broadcast_to(first[:, None], (B, C))
    state = state._replace(cache=problem.decoder.keep(state.cache, slots))
    in_time = lambda state: ops.any(state.running) & (state.position < L)  # noqa: E731
    (state,) = ops.while_loop(in_time, advance, (state,))
    return _translated(problem.decoder, *results(state))


def _translated(decoder: Decoder, hypotheses: Hypotheses, tokens: Tokens) -> tuple[Hypotheses, Tokens]:
    ids = decoder.tokens(hypotheses.ids)
    return hypotheses._replace(ids=ids), tokens._replace(ids=ids)
