"""Which pairs of a corpus are left out, and why. To add a filter: a field of `Filters`, and its lines in `reason`."""

import dataclasses
import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import Count, Kind, Natural, check_fields, checked

Ratio = Annotated[float, Kind("a number of at least 1", lambda number: number >= 1)]
_HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("shard", "u4"), ("place", "u4")])  # 24 bytes a pair


@dataclass(frozen=True)
class Filters:
    """What to leave out of a corpus; nothing by default. A pair counts for the first filter that takes it.

    The filters see texts as the tokenizer does: in NFKC, with single spaces between words. Symbols of a source, such
    as "<2de>", count for duplicates alone.

    Attributes:
        duplicates: pairs that came before, anywhere in the corpus: the first one stays. They are known by a hash of
            128 bits.
        identical: pairs whose two sides are the same text.
        max_ratio: the most that one side's characters may be, as a multiple of the other's; `None` means no limit.
        languages: of source and target, for example ("en", "de"): pairs with a side that py3langid takes for another
            language (`pip install "tf-transformer[filters]"`); `None` means any.

    Raises:
        BadInput: the ratio is below 1, or a language is unknown.
    """

    duplicates: bool = False
    identical: bool = False
    max_ratio: Ratio | None = field(default=None, metadata={"parse": float})
    languages: tuple[str, str] | None = field(default=None, metadata={"parse": lambda text: tuple(text.split(","))})

    def __post_init__(self) -> None:
        check_fields(self)
        known = {language for language, _ in _py3langid().rank("a")} if self.languages else set()
        if unknown := set(self.languages or ()) - known:
            raise BadInput(f"languages: expected codes as en and de, got {', '.join(sorted(unknown))}")

    @classmethod
    def parse(cls, words: Iterable[str]) -> "Filters":
        """Filters from a command line: "duplicates", "identical", "max-ratio=3", "languages=en,de".

        Raises:
            BadInput: there is no such filter, or its value is none.
        """
        known = {each.name.replace("_", "-"): each for each in dataclasses.fields(cls)}
        chosen: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in known:
                raise BadInput(f"filter: expected some of {', '.join(known)}; got {name!r}")
            parse = known[name].metadata.get("parse")
            if bool(value) != bool(parse):
                raise BadInput(f"filter: expected {name}{'=VALUE' if parse else ' alone'}, got {word!r}")
            try:
                chosen[known[name].name] = parse(value) if parse else True
            except ValueError as error:
                raise BadInput(f"filter: expected a number, got {word!r}") from error
        return cls(**chosen)

    def chosen(self) -> dict[str, Any]:
        """Those that are on, by name, as plain values for records.json."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}

    def reason(self, source: bytes, target: bytes) -> str | None:
        """The name of the filter that takes a pair of texts in UTF-8, for what is seen of this pair alone."""
        if not self.identical and self.max_ratio is None and self.languages is None:
            return None
        texts = _normal(source), _normal(target)
        if self.identical and texts[0] == texts[1]:
            return "identical"
        if self.max_ratio is not None:
            short, long = sorted(map(len, texts))
            if long > self.max_ratio * short:
                return "max_ratio"
        if self.languages is not None:
            classify = _py3langid().classify
            if any(classify(text)[0] != language for text, language in zip(texts, self.languages, strict=True)):
                return "languages"
        return None


def _normal(text: bytes) -> str:
    return " ".join(unicodedata.normalize("NFKC", text.decode()).split())


def _py3langid() -> Any:
    return import_extra("py3langid", "filters", "the filter languages")


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
