import hashlib

import pytest

from tf_transformer.config import BadInput
from tf_transformer.data.toy_corpus import corpus, write_corpus


def test_the_corpus_never_changes():
    """A run that resumes would see other batches."""
    splits = corpus()
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 25_000, "dev": 500, "test": 500}
    text = "".join(f"{en}\t{de}\n" for pairs in splits.values() for en, de in pairs)
    checksum = "64373f4fdb122e505d4118e27ad80f1cca3b2bfbfc9e172df021b2b875288390"
    assert hashlib.sha256(text.encode()).hexdigest() == checksum
    smaller = {"train": splits["train"][:701], "dev": [], "test": splits["test"][:13]}
    assert corpus(train=701, dev=0, test=13) == smaller
    for size, message in (({"train": 25_001}, "train: expected 0 to 25,000"), ({"dev": 501}, "dev: expected 0 to 500")):
        with pytest.raises(BadInput, match=f"^{message} pairs, got "):
            corpus(**size)


def test_files(tmp_path):
    paths = write_corpus(tmp_path / "new" / "folder", train=30, dev=5, test=0)
    splits = corpus(train=30, dev=5, test=0)
    names = {"dev.de", "dev.en", "test.de", "test.en", "train.de", "train.en"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == names
    for split, files in paths.items():
        for side, file in enumerate(files):
            assert file.name == f"{split}.{('en', 'de')[side]}"
            assert file.read_bytes().decode() == "".join(f"{pair[side]}\n" for pair in splits[split])
