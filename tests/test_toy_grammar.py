"""The grammar of examples/ makes the package's toy corpus, whose text `test_toy_corpus.py` holds."""

import pytest

from examples import toy_grammar
from tf_transformer.data import toy_corpus


@pytest.mark.program
def test_it_makes_the_file_of_the_package(tmp_path, monkeypatch):
    splits = toy_grammar.corpus()
    assert splits == toy_corpus.corpus()
    monkeypatch.setattr(toy_corpus, "FILE", tmp_path / "corpus.tsv.gz")
    monkeypatch.setattr(toy_grammar, "corpus", lambda: splits)  # not again: it takes seconds
    toy_grammar.main()
    assert splits == toy_corpus.corpus()


def test_the_seed_decides_and_the_size_of_train_leaves_dev_and_test_alone():
    small, large, other = (toy_grammar.corpus(size, 20, 20, seed) for size, seed in ((10, 3), (60, 3), (60, 4)))
    assert small == large | {"train": large["train"][:10]}
    for split, pairs in large.items():
        assert len(set(pairs) & set(other[split])) < len(pairs) / 4
