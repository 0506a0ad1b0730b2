"""Texts of a run: identified by their contents, tokenized once, and without long pairs."""

import dataclasses
import shutil
from unittest import mock

import numpy as np
import pytest
from checkpoints import M2M100
from test_trainer import CONFIG, RECIPE

import tf_transformer as tt
from tf_transformer.data import corpus as corpora
from tf_transformer.data.corpus import Batching
from tf_transformer.data.sources import TextSource
from tf_transformer.models.families import load_tokenizer
from tf_transformer.training.run import Run


class Prepared(Exception):
    """Instead of a model."""


def prepared(trainer):
    """Returns the trainer after a `fit` that raises before it makes the model. It has tokenizer and batches."""
    with mock.patch.object(tt.Trainer, "make_model", side_effect=Prepared), pytest.raises(Prepared):
        trainer.fit()
    return trainer


def test_a_text_may_move_but_not_change(text, tmp_path):
    """A run identifies it by its contents, and resumes without tokenizing it again."""

    def trainer(folder, sides=("en", "de")):
        files = ([tmp_path / folder / f"{part}.{side}" for side in sides] for part in ("train", "dev"))
        return tt.Trainer(tmp_path / "run", CONFIG, tt.TextCorpus(*files), RECIPE)

    shutil.copytree(text, tmp_path / "here")
    first = prepared(trainer("here"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    with pytest.MonkeyPatch.context() as patch:
        tokenized = corpora.tokenized
        patch.setattr(corpora, "tokenized", lambda segments, *more: tokenized(of_dev(segments), *more))
        second = prepared(trainer("there"))
    ids, again = (trainer._batches[0].blocks[0].read() for trainer in (first, second))
    for found, expected in zip(again.source + again.target, ids.source + ids.target, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(
        tt.BadInput,
        match=r"configuration: the training set has changed: .*train.de, .*train.en; the dev set has changed; give",
    ):
        trainer("there", ("de", "en")).fit()
    with open(tmp_path / "there/train.en", "a") as source, open(tmp_path / "there/train.de", "a") as target:
        source.write("One more.\n")
        target.write("Einer mehr.\n")
    with pytest.raises(tt.BadInput, match=r"configuration: the training set has changed: .*en, .*de; give"):
        trainer("there").fit()
    shutil.copytree(text, tmp_path / "there", dirs_exist_ok=True)
    lines = (tmp_path / "there/train.en").read_text().splitlines(keepends=True)
    (tmp_path / "there/train.en").write_text("".join([lines[1], lines[0], *lines[2:]]))  # same size
    source = TextSource(*(tmp_path / f"there/train.{side}" for side in ("en", "de")))
    with pytest.raises(tt.BadInput, match=r"configuration: the training set has changed: .*/train.en; the dev"):
        tt.Trainer(tmp_path / "run", CONFIG, tt.Corpus(source, (["a"], ["b"])), RECIPE).fit()


def test_a_dev_set_may_move_but_not_change(corpus, tmp_path):
    """The history would mix the scores of two texts. Runs of earlier versions have no checksum of their dev set."""
    run, others = Run(tmp_path), tt.Corpus(corpus.train, corpus.dev[::-1])
    before = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).settings
    run.begin(before)
    same = tt.Corpus(corpus.train, (list(corpus.dev[0]), tuple(corpus.dev[1])))
    assert run.exists(tt.Trainer(tmp_path, CONFIG, same, RECIPE).settings)
    with pytest.raises(tt.BadInput, match="configuration: the dev set has changed; give another directory"):
        tt.Trainer(tmp_path, CONFIG, others, RECIPE).fit()
    run.begin({name: value for name, value in before.items() if name != "dev"})
    assert run.exists(tt.Trainer(tmp_path, CONFIG, others, RECIPE).settings)


def test_damaged_ids_are_written_again_once(corpus, tmp_path, capsys):
    """This is printed. Undamaged ids are read."""
    damaged = []
    for _ in range(4):
        prepared(tt.Trainer(tmp_path, CONFIG, corpus, RECIPE))
        damaged.append("ids: expected the training set as ids, found damaged files" in capsys.readouterr().out)
        if len(damaged) == 2:
            with open(tmp_path / "ids/source.npy", "r+b") as file:
                file.truncate(500)
    assert damaged == [False, False, True, False]
    trainer = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE)
    for _ in range(2):  # the second time they are in memory
        prepared(trainer)
    assert "damaged" not in capsys.readouterr().out


def of_dev(segments):
    """Checks that these are the pairs of the dev set, which is smaller."""
    ((encode, rows),) = segments
    pairs = list(rows)
    assert len(pairs) == 23
    return [(encode, pairs)]


def test_a_dev_set_of_long_sentences(corpus, text, tmp_path):
    for side in ("en", "de"):
        (tmp_path / f"long.{side}").write_text("two doors " * 400 + "\n")
    long = tt.TextCorpus((text / "train.en", text / "train.de"), (tmp_path / "long.en", tmp_path / "long.de"))
    with pytest.raises(tt.BadInput, match="expected dev sentences of at most 256 tokens, got none"):
        tt.Trainer(tmp_path / "run", CONFIG, long, RECIPE).fit()
    assert not (tmp_path / "run").exists()


def test_pairs_that_are_longer_than_learned_positions_are_skipped(corpus, tmp_path):
    """They are skipped in training and dev set."""
    config = dataclasses.replace(CONFIG, positions="learned", max_length=23)
    check_lengths(prepared(tt.Trainer(tmp_path / "run", config, corpus, RECIPE)), corpus)


@pytest.mark.extensions
def test_the_maximum_length_of_records_is_fixed(corpus, tmp_path):
    config = dataclasses.replace(CONFIG, positions="learned", max_length=23)
    records = tt.Records.__new__(tt.Records)
    records.max_length = 29
    of_records = tt.Corpus(records, corpus.dev)
    with pytest.raises(tt.BadInput, match="config: expected max_length=29 or more, that of the records, got 23"):
        tt.Trainer(tmp_path / "records", config, of_records, RECIPE)
    tt.Trainer(tmp_path / "records", dataclasses.replace(config, max_length=29), of_records, RECIPE)
    with pytest.raises(tt.BadInput, match="^max_length: expected 29, that of the records, got 31"):
        tt.Trainer(tmp_path / "records", CONFIG, of_records, RECIPE, max_length=31)


def check_lengths(trainer, corpus):
    """Checks that its batches have all pairs of up to 23 tokens per side, and that the corpus is unchanged."""
    tokenizer = load_tokenizer(trainer.run.path / "tokenizer.model")
    train, dev = (batches.blocks[0].read() for batches in trainer._batches)
    assert max(train.lengths().max(), dev.lengths().max()) <= 23 and corpus.max_length == 256
    every = corpus.ids(Batching(tokenizer, 512, 1))
    assert len(train) == np.sum(every.lengths() <= 23) == len(every) - train.skipped < len(every)


def test_a_custom_tokenizer_and_length(corpus, text, tmp_path):
    """The run stores both. It resumes without the tokenizer, but not with another."""
    custom, other = (tt.Tokenizer.train([text / "train.en"], size, normalization="identity") for size in (350, 353))
    arguments = {"tokenizer": custom, "max_length": 23}
    for options in (arguments, {"max_length": 23}):
        check_lengths(prepared(tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, **options)), corpus)
        assert load_tokenizer(tmp_path / "tokenizer.model").fingerprint == custom.fingerprint
    with pytest.raises(tt.BadInput, match="configuration: max_length was 23, now null; give another"):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).fit()
    with pytest.raises(tt.BadInput, match="^tokenizer: expected one of the config's vocab_size=350, got 353$"):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, tokenizer=other)
    arguments["tokenizer"] = corpus.train_tokenizer(350, "bpe")
    with pytest.raises(
        tt.BadInput, match="^tokenizer: expected that of the run, .*/tokenizer.model, got another. Pass"
    ):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, **arguments).fit()


@pytest.mark.extensions
def test_a_run_keeps_the_languages_of_its_start(corpus, tmp_path):
    """A start with other languages is an error."""
    pytest.importorskip("safetensors")
    start = tt.Translator.from_pretrained(M2M100, source_language="en", target_language="de")
    for _ in range(2):
        prepared(tt.Trainer(tmp_path, start.model.config, corpus, RECIPE, start=start))
    other = start.replace(target_language="fr")
    with pytest.raises(tt.BadInput, match="^start: expected the tokenizer and languages of the run, .*, got another"):
        tt.Trainer(tmp_path, start.model.config, corpus, RECIPE, start=other).fit()


def test_a_training_set_without_usable_pairs(tmp_path):
    tt.toy_corpus.write_corpus(tmp_path, train=300, dev=3, test=3)
    corpus = tt.TextCorpus(*((tmp_path / f"{split}.en", tmp_path / f"{split}.de") for split in ("train", "dev")))
    with pytest.raises(tt.BadInput, match="expected training sentences of at most 2 tokens, got none"):
        tt.Trainer(tmp_path / "run", CONFIG, corpus, RECIPE, max_length=2).fit()  # EOS included
    assert not (tmp_path / "run").exists()
