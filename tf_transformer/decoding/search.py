"""Beam search with length penalty (section 6.1); greedy search is beam search with one beam.

This is what it is asked for, and its loop of fixed shapes. `decoding.beams` is its step, and `decoding.growing`
TensorFlow's loop, in which sentences leave and the cache grows.

Axes: B sentences, K beams, L the longest output, C cache slots, V vocabulary.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from keras import ops

from tf_transformer.decoding.beams import (
    BeamState,
    Finished,
    Hypotheses,
    Rows,
    Step,
    Symbols,
    extend,
    penalty,
    results_of,
)
from tf_transformer.decoding.logits import RULES
from tf_transformer.decoding.primitives import IMPOSSIBLE, AnyTensor, size
from tf_transformer.decoding.search_options import SEARCH_OPTIONS, Beams
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, checked

if TYPE_CHECKING:
    from tf_transformer.decoding import growing
else:
    growing = lazily("tf_transformer.decoding.growing", "a search whose shapes change")


class Fixed(NamedTuple):
    """The shapes of a search whose rows stay to its end, all in one loop."""

    beams: int  # K, at least the widest beam_size
    steps: Any  # L; a row that still runs after the last step gets no output
    # Whether the cache begins empty, and every step appends its slots, for an engine whose loops allow that. Else it
    # has all K * L slots from the start, and no shape changes.
    grows: bool = False


class Decoder(NamedTuple):
    """A model as a search, or sampling, calls it: step by step, with a cache.

    `step(ids [B, K], position, slot, ancestry [B, K, C], cache)` takes each beam's newest symbol. It returns the logits
    [B, K, V] of the next one, and the new cache; for a detailed search also the source position of greatest attention,
    int32 [B, K]. The cache is append-only: the K newest symbols take slots slot to slot + K - 1, and nothing is
    re-ordered. `ancestry` says which slots each beam may see, its own newest one included.

    `keep(cache, slots [B, M])` returns the cache with only these slots, in this order. Beams share most of their
    history, so after some steps they see few of the slots.
    """

    step: Callable[..., tuple[Any, ...]]
    cache: Any  # the first, with one free slot: nested tensors [B, ..., slots, d], or without slots
    keep: Callable[[Any, Any], Any]
    fixed: Fixed | None = None  # `None` lets rows leave and slots grow, which only TensorFlow does


class SearchProblem(NamedTuple):
    """What is searched, or sampled, for B sentences."""

    decoder: Decoder
    start_ids: Any  # int32 [B], the symbol before the first
    max_length: Any  # int32 [B], the greatest number of symbols, the end symbol included; 0 gives the empty output
    end_id: int  # the symbol that ends an output


OPTIONS = tuple(name for name, option in SEARCH_OPTIONS.items() if option.search)


@checked
def beam_search(
    problem: SearchProblem,
    *,
    n_best: Beams = 1,
    exact_n: Count | AnyTensor | None = None,
    allowed: Callable[..., Any] | None = None,
    **options: Any,
) -> Hypotheses:
    """Search for the outputs of highest score = log-probability / length penalty.

    A sentence's search ends when patience * beam_size outputs have finished (Kasai et al. 2022), when no alive
    hypothesis can beat the last of the `exact_n` best finished ones, or at the maximum length. With one beam it ends at
    the first end symbol: that is greedy search. A row's result does not depend on the other rows.

    Args:
        problem: the model's step, and what each row begins with.
        n_best: N, the outputs of each sentence; places beyond a row's beam size stay unused.
        exact_n: int32 scalar: the first exact_n outputs are certain, the others may be other than the best; `None`
            means N. It may be a tensor, so that one traced search serves requests for one output and for several.
        allowed: `allowed(ids [B, K, L], position, row [B])` gives the symbols that may follow, bool [B, K or 1, V];
            `None` allows all. `row` has the sentences' places in the batch at the start, which some may have left.
        options: each a number or [B], by the names and with the defaults of `search_options`. The widest beam_size is
            K; min_length is capped at max_length; patience infinity makes the search exact: it goes on until no other
            output can be better. `logits.RULES` says what min_length and no_repeat_ngram_size forbid.

    Returns:
        `Hypotheses` with N = n_best. A row without finished outputs has its unfinished ones.
    """
    found, _ = _search(problem, False, n_best, exact_n, allowed, **options)
    return found


@checked
def detailed_search(
    problem: SearchProblem, *, n_best: Beams = 1, exact_n: Count | AnyTensor | None = None, **options: Any
) -> tuple[Hypotheses, Symbols]:
    """As `beam_search`; also each symbol's log-probability and its source position of greatest attention."""
    return _search(problem, True, n_best, exact_n, None, **options)


def _search(
    problem: SearchProblem,
    detailed: bool,
    n_best: int,
    exact_n: Tensor,
    allowed: Callable[..., Any] | None,
    **options: Any,
) -> tuple[Hypotheses, Symbols]:
    """`detailed_search`, or with less detail `beam_search`; their arguments."""
    exact_n = n_best if exact_n is None else exact_n
    B, fixed = size(problem.start_ids, 0), problem.decoder.fixed
    by_row = _broadcast(options, B)
    max_length = ops.cast(problem.max_length, "int32")
    if "min_length" in by_row:
        by_row["min_length"] = ops.minimum(by_row["min_length"], max_length)
    enough = ops.maximum(ops.round(by_row.pop("patience") * ops.cast(by_row["beam_size"], "float32")), 1.0)
    greatest_penalty = penalty(max_length, by_row["length_penalty"])
    rows = Rows(ops.arange(B, dtype="int32"), max_length, enough, greatest_penalty, by_row)
    # Of an empty batch, K is 1 and L is 0.
    K, L, grows = fixed or (ops.max(by_row["beam_size"], initial=1), ops.max(max_length, initial=0), False)
    first = ops.minimum(rows.max_length, 0)  # of the slots; as a constant, its copies would go into an exported file
    C = 0 if not fixed else ops.min(first) if grows else K * L  # no constant 0, which a converter would take for fixed

    def advance(state: BeamState) -> tuple[BeamState]:
        position, slot = state.position, state.slot
        beam = ops.arange(K, dtype="int32")
        if grows:
            own = ops.broadcast_to(beam == beam[:, None], (B, K, K))
            ancestry = ops.concatenate([state.ancestry, own], axis=2)
        else:
            own = ops.arange(size(state.ancestry, 2), dtype="int32") == (slot + beam)[:, None]  # [K, C]
            ancestry = state.ancestry | own
        logits, cache, *attended = problem.decoder.step(state.newest, position, slot, ancestry, state.cache)
        may_follow = allowed and allowed(state.alive_ids, position, state.rows.number)
        state = state._replace(slot=slot + K, ancestry=ancestry, cache=cache)
        step = Step(ops.cast(logits, "float32"), may_follow, attended[0] if detailed else None)
        return (extend(state, step, problem.end_id, exact_n),)

    def results(state: BeamState) -> tuple[Hypotheses, Symbols]:
        return results_of(state, n_best, problem.end_id)

    kept = ("int32", "float32", "int32") if detailed else ("int32",)
    none = ops.zeros((B, K), "float32")
    state = BeamState(
        position=ops.zeros((), "int32"),
        slot=ops.zeros((), "int32"),
        rows=rows,
        newest=ops.broadcast_to(problem.start_ids[:, None], (B, K)),
        symbols=Symbols(*(ops.zeros((B, 2 * K, L), dtype) for dtype in kept)),
        alive_log_probs=ops.where(ops.arange(K, dtype="int32") == 0, none, IMPOSSIBLE),
        ancestry=ops.zeros((B, K, C), "bool"),
        lengths=ops.zeros((B,), "int32"),
        best=Finished(none + IMPOSSIBLE, none + IMPOSSIBLE),
        finished=ops.zeros((B,), "int32"),
        running=max_length > 0,
        cache=problem.decoder.cache,
    )
    if not fixed:
        return growing.searched(state, advance, results, problem.decoder.keep, L)
    slots = ops.broadcast_to(first[:, None], (B, C))
    state = state._replace(cache=problem.decoder.keep(state.cache, slots))
    in_time = lambda state: ops.any(state.running) & (state.position < L)  # noqa: E731
    (state,) = ops.while_loop(in_time, advance, (state,))
    return results(state)


def _broadcast(options: dict[str, Any], B: Tensor) -> dict[str, Any]:
    """The options of a search, each [B]; a value below an option's lowest becomes the lowest.

    A number that asks nothing of a rule is left out, and the rule with it.
    """
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"options of a search: expected {', '.join(OPTIONS)}; got {', '.join(unknown)}")
    values = {name: options.get(name, SEARCH_OPTIONS[name].default) for name in OPTIONS}
    idle = [name for name in RULES if isinstance(values[name], int) and values[name] <= SEARCH_OPTIONS[name].lowest]
    own = {name: SEARCH_OPTIONS[name] for name in OPTIONS if name not in idle}
    return {
        name: ops.broadcast_to(ops.maximum(ops.cast(values[name], option.dtype), option.lowest), (B,))
        for name, option in own.items()
    }
