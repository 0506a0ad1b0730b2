"""A run's text: known by its contents, tokenized once, and without what is too long."""

import dataclasses
import shutil

import numpy as np
import pytest
from checkpoints import M2M100
from test_trainer import CONFIG, RECIPE

import tf_transformer as tt
from tf_transformer.data import corpus as corpora
from tf_transformer.data.corpus import Batching
from tf_transformer.training.run import Run


@pytest.fixture(scope="module")
def corpus(text):
    return tt.TextCorpus((text / "train.en", text / "train.de"), (text / "dev.en", text / "dev.de"))


def test_a_text_may_move_but_not_change(text, tmp_path, monkeypatch):
    """A run knows it by its contents, and goes on without tokenizing it again."""

    def trainer(folder, sides=("en", "de")):
        files = ([tmp_path / folder / f"{part}.{side}" for side in sides] for part in ("train", "dev"))
        return tt.Trainer(tmp_path / "run", CONFIG, tt.TextCorpus(*files), RECIPE)

    seen = []
    monkeypatch.setattr(tt.Trainer, "_train", lambda self, *_: seen.append(self._batches[0].blocks[0].read()))
    shutil.copytree(text, tmp_path / "here")
    trainer("here").fit()
    shutil.move(tmp_path / "here", tmp_path / "there")
    with pytest.MonkeyPatch.context() as patch:
        tokenized = corpora.tokenized
        patch.setattr(corpora, "tokenized", lambda rows, *more: tokenized(of_dev(rows), *more))
        trainer("there").fit()
    for found, expected in zip(seen[1].source + seen[1].target, seen[0].source + seen[0].target, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(
        tt.BadInput,
        match=r"configuration: the training text has changed: .*train.de, .*train.en; the dev text has changed; give",
    ):
        trainer("there", ("de", "en")).fit()
    with open(tmp_path / "there/train.en", "a") as source, open(tmp_path / "there/train.de", "a") as target:
        source.write("One more.\n")
        target.write("Einer mehr.\n")
    with pytest.raises(tt.BadInput, match=r"configuration: the training text has changed: .*en, .*de; give"):
        trainer("there").fit()
    shutil.copytree(text, tmp_path / "there", dirs_exist_ok=True)
    lines = (tmp_path / "there/train.en").read_text().splitlines(keepends=True)
    (tmp_path / "there/train.en").write_text("".join([lines[1], lines[0], *lines[2:]]))  # of the same size
    source = tt.sources.TextSource(*(tmp_path / f"there/train.{side}" for side in ("en", "de")))
    with pytest.raises(tt.BadInput, match=r"configuration: the training text has changed: .*/train.en; the dev"):
        tt.Trainer(tmp_path / "run", CONFIG, tt.Corpus(source, (["a"], ["b"])), RECIPE).fit()


def test_a_dev_text_may_move_but_not_change(corpus, tmp_path):
    """The history would mix the scores of two texts. A run of an earlier version does not know its dev text."""
    run, others = Run(tmp_path), tt.Corpus(corpus.train, corpus.dev[::-1])
    before = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).settings
    run.begin(before)
    same = tt.Corpus(corpus.train, (list(corpus.dev[0]), tuple(corpus.dev[1])))
    assert run.exists(tt.Trainer(tmp_path, CONFIG, same, RECIPE).settings)
    with pytest.raises(tt.BadInput, match="configuration: the dev text has changed; give another folder"):
        tt.Trainer(tmp_path, CONFIG, others, RECIPE).fit()
    run.begin({name: value for name, value in before.items() if name != "dev"})
    assert run.exists(tt.Trainer(tmp_path, CONFIG, others, RECIPE).settings)


def test_damaged_ids_are_written_again_once(corpus, tmp_path, monkeypatch, capsys):
    """With a line that says so; whole ones are read."""
    monkeypatch.setattr(tt.Trainer, "_train", lambda *_: None)
    said = []
    for _ in range(4):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).fit()
        said.append("ids: expected the training text as ids, found damaged files" in capsys.readouterr().out)
        if len(said) == 2:
            with open(tmp_path / "ids/source.npy", "r+b") as file:
                file.truncate(500)
    assert said == [False, False, True, False]
    trainer = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE)
    for _ in range(2):  # the second time they are in memory
        trainer.fit()
    assert "damaged" not in capsys.readouterr().out


def of_dev(pairs):
    """Only the dev text, which is smaller, may be tokenized."""
    pairs = list(pairs)
    assert len(pairs) == 23
    return pairs


def test_a_dev_text_that_never_fits(corpus, text, tmp_path):
    for side in ("en", "de"):
        (tmp_path / f"long.{side}").write_text("two doors " * 400 + "\n")
    long = tt.TextCorpus((text / "train.en", text / "train.de"), (tmp_path / "long.en", tmp_path / "long.de"))
    with pytest.raises(tt.BadInput, match="expected a dev text with sentences of at most 256 tokens, got none"):
        tt.Trainer(tmp_path / "run", CONFIG, long, RECIPE).fit()
    assert not (tmp_path / "run").exists()


def test_what_is_longer_than_learned_positions_is_left_out(corpus, tmp_path, monkeypatch):
    """Of training and dev text; records have other lengths for good."""
    seen, config = [], dataclasses.replace(CONFIG, positions="learned", max_length=23)
    monkeypatch.setattr(tt.Trainer, "_train", lambda self, tokenizer, *_: seen.append((self, tokenizer)))
    tt.Trainer(tmp_path / "run", config, corpus, RECIPE).fit()
    ((trainer, tokenizer),) = seen
    check_lengths(trainer, corpus, tokenizer)
    with pytest.raises(tt.BadInput, match="expected sentences of at most 3 tokens to train on, got none"):
        tt.Trainer(tmp_path / "3", dataclasses.replace(config, max_length=3), corpus, RECIPE).fit()
    records = tt.Records.__new__(tt.Records)
    records.max_length = 29
    prepared = tt.Corpus(records, corpus.dev)
    with pytest.raises(tt.BadInput, match="config: expected max_length=29 or more, that of the records, got 23"):
        tt.Trainer(tmp_path / "records", config, prepared, RECIPE)
    tt.Trainer(tmp_path / "records", dataclasses.replace(config, max_length=29), prepared, RECIPE)
    with pytest.raises(tt.BadInput, match="^max_length: expected 29, that of the records, got 31"):
        tt.Trainer(tmp_path / "records", CONFIG, prepared, RECIPE, max_length=31)


def check_lengths(trainer, corpus, tokenizer):
    """Its batches have the pairs of up to 23 tokens a side, and all of them; the corpus is as it was."""
    train, dev = (batches.blocks[0].read() for batches in trainer._batches)
    assert max(train.lengths().max(), dev.lengths().max()) <= 23 and corpus.max_length == 256
    every = corpus.ids(Batching(tokenizer, 512, 1))
    assert len(train) == np.sum(every.lengths() <= 23) == len(every) - train.skipped < len(every)


def test_a_tokenizer_and_a_length_of_ones_own(corpus, text, tmp_path, monkeypatch):
    """The run keeps both; it goes on without the tokenizer, and with no other."""
    own, other = (tt.Tokenizer.learn([text / "train.en"], size, normalization="identity") for size in (350, 353))
    seen, given = [], {"tokenizer": own, "max_length": 23}
    monkeypatch.setattr(tt.Trainer, "_train", lambda self, tokenizer, *_: seen.append((self, tokenizer)))
    tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, **given).fit()
    tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, max_length=23).fit()
    assert [tokenizer.fingerprint for _, tokenizer in seen] == [own.fingerprint] * 2
    check_lengths(seen[0][0], corpus, own)
    with pytest.raises(tt.BadInput, match="configuration: max_length was 23, now null; give another"):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).fit()
    with pytest.raises(tt.BadInput, match="^tokenizer: expected one of the config's vocab_size=350, got 353$"):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, tokenizer=other)
    given["tokenizer"] = corpus.learn_tokenizer(350, "bpe")
    with pytest.raises(
        tt.BadInput, match="^tokenizer: expected that of the run, .*/tokenizer.model, got another; give"
    ):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, **given).fit()


def test_a_run_keeps_the_languages_of_its_start(corpus, tmp_path, monkeypatch):
    """The run continues with them, so a start with others is refused."""
    pytest.importorskip("safetensors")
    start = tt.Translator.from_pretrained(M2M100, source_language="en", target_language="de")
    monkeypatch.setattr(tt.Trainer, "_train", lambda *_: None)
    for _ in range(2):
        tt.Trainer(tmp_path, start.model.config, corpus, RECIPE, start=start).fit()
    other = start.replace(target_language="fr")
    with pytest.raises(tt.BadInput, match="^start: expected the tokenizer and languages of the run, .*, got another"):
        tt.Trainer(tmp_path, start.model.config, corpus, RECIPE, start=other).fit()


def test_nothing_to_learn(tmp_path):
    tt.toy_corpus.write_corpus(tmp_path, train=300, dev=3, test=3)
    corpus = tt.TextCorpus(*((tmp_path / f"{split}.en", tmp_path / f"{split}.de") for split in ("train", "dev")))
    with pytest.raises(tt.BadInput, match="expected sentences of at most 2 tokens to train on, got none"):
        tt.Trainer(tmp_path / "run", CONFIG, corpus, RECIPE, max_length=2).fit()  # the end symbol included
    assert not (tmp_path / "run").exists()
