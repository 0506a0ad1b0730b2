"""The toy corpus: 26,000 synthetic English-German sentence pairs, a file of the package.

Some word pairs are held out: an adjective with its noun ("the red door"), a verb with its object ("waits for the bus").
No sentence of train or dev contains one. Every sentence of test contains at least one, so it cannot be translated from
memory. The single words are all frequent in train.

Data card: generated from a context-free grammar with seed 1, so it has no personal data and no third-party rights;
license of the package. Sentences have 2 to 18 words, 541 different ones in English and 1,052 in German. Use it only for
demonstrations and tests.
"""

import gzip
import os
from pathlib import Path

from tf_transformer.config import BadInput
from tf_transformer.utils.files import user_path, write_text
from tf_transformer.utils.values import Natural, checked

FILE = Path(__file__).with_name("toy_corpus.tsv.gz")  # one pair per line: those of train, then of dev, then of test
SIZES = {"train": 25_000, "dev": 500, "test": 500}


@checked
def corpus(train: Natural = 25_000, dev: Natural = 500, test: Natural = 500) -> dict[str, list[tuple[str, str]]]:
    """Returns the first (English, German) pairs of each split, {"train": [...], "dev": [...], "test": [...]}.

    Raises:
        BadInput: If a count is negative, or larger than the split.
    """
    lines = gzip.decompress(FILE.read_bytes()).decode().splitlines()
    pairs, splits, first = [(en, de) for en, de in (line.split("\t") for line in lines)], {}, 0
    for (split, size), count in zip(SIZES.items(), (train, dev, test), strict=True):
        if count > size:
            raise BadInput(f"{split}: expected 0 to {size:,} pairs, got {count:,}")
        splits[split] = pairs[first : first + count]
        first += size
    return splits


@checked
def write_corpus(
    directory: str | os.PathLike[str], train: Natural = 25_000, dev: Natural = 500, test: Natural = 500
) -> dict[str, tuple[Path, Path]]:
    """Writes corpus(...) as train.en, train.de, dev.en, ... (UTF-8, one sentence per line), and returns the paths."""
    splits, paths = corpus(train, dev, test), {}
    directory = user_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        paths[split] = directory / f"{split}.en", directory / f"{split}.de"
        for side, path in enumerate(paths[split]):
            write_text(path, (pair[side] + "\n" for pair in pairs))
    return paths
