import hashlib

import pytest

from tf_transformer.config import BadInput
from tf_transformer.data.toy_corpus import corpus, write_corpus
from tf_transformer.utils import files


def test_the_text_never_changes():
    """A run that goes on would see other batches. These are the pairs of before there was a file."""
    splits = corpus()
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 25_000, "dev": 500, "test": 500}
    text = "".join(f"{en}\t{de}\n" for pairs in splits.values() for en, de in pairs)
    checksum = "64373f4fdb122e505d4118e27ad80f1cca3b2bfbfc9e172df021b2b875288390"
    assert hashlib.sha256(text.encode()).hexdigest() == checksum


def test_smaller_counts_are_the_first_pairs():
    whole, some = corpus(), corpus(train=701, dev=0, test=13)
    assert some == {"train": whole["train"][:701], "dev": [], "test": whole["test"][:13]}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train": 25_001}, "train: expected 0 to 25,000 pairs, got 25,001"),
        ({"dev": 501}, "dev: expected 0 to 500 pairs, got 501"),
    ],
)
def test_counts_out_of_range(sizes, message):
    with pytest.raises(BadInput, match=f"^{message}$"):
        corpus(**sizes)


def test_files(tmp_path):
    paths = write_corpus(tmp_path / "new" / "folder", train=30, dev=5, test=0)
    splits = corpus(train=30, dev=5, test=0)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "dev.de", "dev.en", "test.de", "test.en", "train.de", "train.en",
    ]  # fmt: skip
    for split, (en, de) in paths.items():
        assert (en.name, de.name) == (f"{split}.en", f"{split}.de")
        assert en.read_bytes().decode() == "".join(f"{pair[0]}\n" for pair in splits[split])
        assert de.read_bytes().decode() == "".join(f"{pair[1]}\n" for pair in splits[split])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_corpus(tmp_path, train=5, dev=1, test=1)
    before = (tmp_path / "train.en").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_corpus(tmp_path, train=6, dev=1, test=1)
    assert (tmp_path / "train.en").read_bytes() == before
