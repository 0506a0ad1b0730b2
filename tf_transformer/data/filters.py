"""Which pairs of a corpus are left out, and why. To add a filter: a field of `Filters`, and its lines in `reason`."""

import dataclasses
import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.utils.values import Count, Natural, check_fields, checked

_HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("shard", "u4"), ("place", "u4")])  # 24 bytes a pair


@dataclass(frozen=True)
class Filters:
    """Which pairs of a corpus to drop; none by default. A pair counts for the first filter that drops it.

    The filters see texts as the tokenizer does: in NFKC, with single spaces between words. Tags of a source, such as
    "<2de>", count only for duplicates. For filters by language, length ratio or alignment run OpusCleaner or OpusFilter
    before `prepare`.

    Attributes:
        duplicates: pairs that came before, anywhere in the corpus: the first one stays. They are recognized by a hash
            of 128 bits.
        identical: pairs whose two sides are the same text.
    """

    duplicates: bool = False
    identical: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def parse(cls, names: Iterable[str]) -> "Filters":
        """Returns filters from a command line, for example "duplicates", "identical".

        Raises:
            BadInput: If there is no such filter.
        """
        known = [each.name for each in dataclasses.fields(cls)]
        for name in names:
            if name not in known:
                raise BadInput(f"filter: expected some of {', '.join(known)}, got {name!r}")
        return cls(**dict.fromkeys(names, True))

    def chosen(self) -> dict[str, Any]:
        """Those that are on, by name, as plain values for records.json."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    def reason(self, source: bytes, target: bytes) -> str | None:
        """The name of the filter that drops a pair of texts in UTF-8, by what this pair alone shows."""
        return "identical" if self.identical and _normal(source) == _normal(target) else None


def _normal(text: bytes) -> str:
    return " ".join(unicodedata.normalize("NFKC", text.decode()).split())


@checked
def hashed(shard: Natural, pairs: Iterable[tuple[int, bytes, bytes]], buckets: Count) -> list[tuple[int, bytes]]:
    """Hashes of a shard's pairs, by bucket: equal pairs of all shards meet in one bucket.

    Args:
        shard: its number.
        pairs: place in the shard, source and target, in UTF-8.
        buckets: how many there are.

    Returns:
        a list of (bucket number, packed hashes for `repeated`).
    """
    places, digests = [], []
    for place, source, target in pairs:
        text = f"{_normal(source)}\n{_normal(target)}"
        digests.append(hashlib.blake2b(text.encode(), digest_size=16).digest())
        places.append(place)
    found = np.zeros(len(places), _HASHED)
    found["high"], found["low"] = np.frombuffer(b"".join(digests), "u8").reshape(-1, 2).T
    found["shard"], found["place"] = shard, places
    where = found["high"] % np.uint64(buckets)
    return [(int(bucket), found[where == bucket].tobytes()) for bucket in np.unique(where)]


def repeated(hashes: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Pairs of a bucket that came before.

    Args:
        hashes: all of the bucket's, in any order.

    Returns:
        the number of each shard that has some, and their places in it, uint32.
    """
    found = np.frombuffer(b"".join(hashes), _HASHED)
    found = found[np.lexsort((found["place"], found["shard"], found["low"], found["high"]))]
    same = (found["high"][1:] == found["high"][:-1]) & (found["low"][1:] == found["low"][:-1])
    later = found[1:][same]
    return [(int(shard), later["place"][later["shard"] == shard].tobytes()) for shard in np.unique(later["shard"])]
