"""Candidates: the target tokens that a search considers for a sentence, so that its steps compute few logits.

Axes: B sentences, S source tokens, M candidates, V source vocabulary.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.primitives import gather, size, sorted_top_k
from tf_transformer.utils.type_names import Tensor

BLOCK = 64  # divides M, since `beams.top_k` sorts blocks


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Target tokens that may translate each source token. `tf_transformer.extensions.interop.shortlist` reads a file.

    Attributes:
        always: Candidates of every sentence, int32 [N]: 0, 1, 2, 3, and others.
        lists: More candidates by id of a source token, int32 [V, C], filled up with zeros.

    Raises:
        BadInput: If an attribute is not as described.
    """

    always: Any
    lists: Any

    def __post_init__(self) -> None:
        always, lists = (np.asarray(part) for part in (self.always, self.lists))
        if wrong := [part.dtype for part in (always, lists) if part.dtype != np.int32]:
            raise BadInput(f"shortlist: expected ids in int32, got {wrong[0]}")
        # The control ids are also the indices of these candidates.
        if always.ndim != 1 or always[:4].tolist() != [0, 1, 2, 3] or len(np.unique(always)) < len(always):
            raise BadInput(f"always: expected different ids that begin with 0, 1, 2, 3, got {always.tolist()!r:.60}")
        # Those of padding would depend on the batch.
        if lists.ndim != 2 or not lists.size or lists.min() < 0 or lists[0].any() or np.isin(lists, always[1:]).any():
            raise BadInput("lists: expected ids [V, C] that are not in `always`, and zeros for padding, got others")

    @functools.cached_property
    def most(self) -> int:
        """Number of different tokens in `lists`."""
        return int(np.count_nonzero(np.unique(np.asarray(self.lists))))

    @property
    def nbytes(self) -> int:
        """Size of both attributes in bytes."""
        return 4 * (len(self.always) + self.lists.shape[0] * self.lists.shape[1])

    def __repr__(self) -> str:
        return f"{len(self.always)} tokens, and up to {self.lists.shape[1]} for each source token"

    def candidates(
        self, source: Tensor, prefix: Tensor = None, fixed: bool = False, most: int | None = None
    ) -> tuple[Any, Any]:
        """Returns the candidates of source ids [B, S], int32 [B, M], and whether a sentence has more, bool [B].

        They are `always`, then the other ids, descending, then zeros. A sentence's candidates depend on its ids only.

        Args:
            source: Ids of sentences.
            prefix: Ids [B, P] that are candidates too.
            fixed: Whether M depends on sizes only. Otherwise it is the number of candidates, rounded up.
            most: Number of candidates besides `always`, if it is fixed. `None` means that no sentence has more.
        """
        B, N = size(source, 0), len(self.always)
        others = gather(ops.convert_to_tensor(self.lists), source)
        others = ops.reshape(others, (B, size(source, 1) * self.lists.shape[1]))
        if prefix is not None:
            known = ops.any(ops.expand_dims(prefix, 2) == ops.convert_to_tensor(self.always), axis=2)
            others = ops.concatenate([others, ops.where(known, 0, prefix)], axis=1)
        others = sorted_top_k(others, size(others, 1))[0]
        is_first = others != ops.pad(others[:, :-1], ((0, 0), (1, 0)))
        count = ops.sum(ops.cast(is_first & (others > 0), "int32"), axis=1)
        slots: Any = ops.max(count, initial=0)
        if fixed:
            slots = min(size(others, 1), self.most + (0 if prefix is None else size(prefix, 1)))
            slots = slots if most is None else min(most, slots)
        slots = (N + slots + BLOCK - 1) // BLOCK * BLOCK - N
        others = ops.pad(ops.where(is_first, others, 0), ((0, 0), (0, BLOCK)))
        always = ops.broadcast_to(ops.convert_to_tensor(self.always), (B, N))
        return ops.concatenate([always, sorted_top_k(others, slots)[0]], axis=1), count > slots
