"""The constraint of the parser's search (section 6.3): which tokens may continue a tree."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.primitives import gather, size
from tf_transformer.tokenizers.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID
from tf_transformer.utils.type_names import Tensor

# Opening brackets in a row. Treebanks have 8, and a search could otherwise open them until it only has room to close.
MAX_OPEN = 16
OTHER, WORD, LEAF, OPEN, CLOSE, END = range(6)  # kinds of ids


class Grammar:
    """Restricts lines of ids to trees over given words.

    A word's first subword comes at the start, or after the tag of the previous word. A closing bracket closes the
    innermost open constituent, which has its label and is not empty. EOS comes when nothing is open. There is always
    room to close what is open.

    Args:
        tokens: Control tokens of a parser's tokenizer.
        vocab_size: Vocabulary size V.

    Raises:
        BadInput: If there are no tags, or an opening bracket has no closing one.
    """

    def __init__(self, tokens: list[str], vocab_size: int) -> None:
        ids = {token: FIRST_ID + i for i, token in enumerate(tokens)}
        kinds = [OTHER] * UNKNOWN_ID + [WORD] * (vocab_size - UNKNOWN_ID)
        closing = [-1] * vocab_size  # ids of closing brackets by those of opening ones
        kinds[EOS_ID] = END
        for token, id in ids.items():
            kinds[id] = {"(": OPEN, ")": CLOSE}.get(token[0], LEAF)
            if kinds[id] == OPEN:
                closing[id] = ids.get(f"){token[1:]}", -1)
        if LEAF not in kinds or any(kind == OPEN and other < 0 for kind, other in zip(kinds, closing, strict=True)):
            raise BadInput(f"expected the tokens of trees, each opening bracket with its closing one, got {tokens}")
        self.kinds, self.closing = np.array(kinds, np.int32), np.array(closing, np.int32)

    def allowed(self, firsts: Tensor, count: Tensor, max_length: Tensor) -> Callable[..., Any]:
        """Returns a function for `search.beam_search(allowed=...)`, given each word's first subword, int32 [B, N].

        `count` is the number of words, int32 [B], and `max_length`, int32 [B], more than twice as much if not 0.
        """
        all_kinds, closing_of = ops.convert_to_tensor(self.kinds), ops.convert_to_tensor(self.closing)
        firsts = ops.pad(firsts, ((0, 0), (0, 1)))

        def allowed(ids: Tensor, position: Tensor, row: Tensor) -> Any:
            # Counted anew from all ids, since the search copies and reorders its hypotheses between steps.
            kinds = gather(all_kinds, ids)  # [B, K, L]; OTHER from `position` on
            opens = kinds == OPEN
            depths = ops.cumsum(_count(opens) - _count(kinds == CLOSE), axis=2)
            depth = depths[:, :, -1]  # [B, K]
            words = ops.sum(_count(kinds == WORD), axis=2)
            leaves = ops.sum(_count(kinds == LEAF), axis=2)
            total = gather(count, row)[:, None]
            word_is_next = (words == leaves) & (words < total)
            needs_tag = words > leaves
            innermost = _last(opens & (depths == depth[:, :, None]))  # index of the innermost open bracket
            closing = gather(closing_of, gather(ids, ops.maximum(innermost, 0), batch_dims=2))
            opened = position - 1 - _last((kinds != OTHER) & ~opens)  # opening brackets at the end
            room = gather(max_length, row)[:, None] - position - 1  # after the next token
            # After an opening bracket there must be room for the other words and tags, all closing brackets and EOS.
            needed = 2 * total - words - leaves + depth + 2
            may = dict.fromkeys(range(6), ops.zeros_like(word_is_next)) | {  # below: one word, one closing bracket
                LEAF: needs_tag,
                OPEN: needs_tag & (opened < MAX_OPEN) & (needed <= room),
                END: (leaves == total) & (depth == 0),
            }
            may_follow = gather(ops.stack([may[kind] for kind in sorted(may)], axis=2), all_kinds, axis=2)
            first = gather(gather(firsts, row), ops.minimum(words, size(firsts, 1) - 1), batch_dims=1)

            def only(id: Tensor, condition: Tensor) -> Any:
                is_id = ops.arange(len(self.kinds), dtype="int32") == id[:, :, None]  # [B, K, V]
                return condition[:, :, None] & is_id

            may_close = ~word_is_next & (depth > 0) & (opened == 0)
            return may_follow | only(first, word_is_next) | only(closing, may_close)

        return allowed


def _count(condition: Tensor) -> Any:
    return ops.cast(condition, "int32")


def _last(condition: Tensor) -> Any:
    """Returns the last index where condition [B, K, L] holds, or -1: int32 [B, K]."""
    indices = ops.arange(size(condition, 2), dtype="int32")
    return ops.max(ops.where(condition, indices, -1), axis=2)
