"""Texts of a run: identified by their contents, tokenized once, and without long pairs."""

import collections
import contextlib
import dataclasses
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import M2M100
from test_trainer import CONFIG, RECIPE

import tf_transformer as tt
from tf_transformer import distribution
from tf_transformer.data import corpus as corpora
from tf_transformer.data import sources as data_sources
from tf_transformer.data.corpus import Batching
from tf_transformer.data.sources import TextSource
from tf_transformer.models.families import load_tokenizer
from tf_transformer.training.run import Run
from tf_transformer.utils import lines as text_lines


class Prepared(Exception):
    """Instead of a model."""


def prepared(trainer):
    """Returns the trainer after a `fit` that raises before it makes the model. It has tokenizer and batches."""
    with mock.patch.object(tt.Trainer, "make_model", side_effect=Prepared), pytest.raises(Prepared):
        trainer.fit()
    return trainer


ONE = ["A pair."], ["Ein Paar."]
EXTENSIONS = pytest.mark.extensions


def one_pair(folder):
    """Returns the files of a dev set of one pair, which the training set does not have."""
    files = folder / "one.en", folder / "one.de"
    for file, (line,) in zip(files, ONE, strict=True):
        file.write_text(f"{line}\n")
    return files


class Counted:
    """An open text that counts the bytes of its lines."""

    def __init__(self, file, counts, path):
        self.file, self.counts, self.path, self.peek = file, counts, path, file.peek

    def __iter__(self):
        for line in self.file:
            self.counts[self.path] += len(line)
            yield line


@pytest.fixture
def read(monkeypatch):
    """Returns how often each training file is read, and each of its lines is judged, in the test so far."""
    opened, judge, sizes, lines = text_lines.open_text, text_lines.line_problem, collections.Counter(), []

    @contextlib.contextmanager
    def counting(path):
        with opened(path) as file:
            yield Counted(file, sizes, Path(path))

    def judged(line):
        lines.append(line)
        return judge(line)

    monkeypatch.setattr(text_lines, "open_text", counting)
    monkeypatch.setattr(text_lines, "line_problem", judged)
    monkeypatch.setattr(data_sources, "line_problem", judged)

    def read(*files):
        """Returns the readings and the judgments, a number for each, or several if files or lines differ."""
        expected = collections.Counter(line for file in files for line in file.read_bytes().splitlines())
        counts = collections.Counter(line for line in lines if line in expected)
        found = {sizes[file] / file.stat().st_size for file in files}
        times = {counts[line] / expected[line] for line in expected}
        sizes.clear(), lines.clear()
        return tuple(one.pop() if len(one) == 1 else one for one in (found, times))

    return read


@pytest.mark.parametrize(
    ("make", "first", "resumed"),
    [
        (lambda files, dev: tt.TextCorpus(files, dev), 2, 1),
        pytest.param(
            lambda files, dev: tt.TextCorpus(files, dev, filters=tt.Filters(duplicates=True)), 2, 1, marks=EXTENSIONS
        ),
        (lambda files, dev: tt.TextCorpus(files, 0.05), 3, 1),
        pytest.param(
            lambda files, dev: tt.TextCorpus(files, 20, filters=tt.Filters(duplicates=True)), 3, 1, marks=EXTENSIONS
        ),
        pytest.param(
            lambda files, dev: tt.Corpus(tt.sources.JoinedSource([tt.sources.TextSource(*files)], [2.5]), ONE),
            *(2, 1),
            marks=EXTENSIONS,
        ),
    ],
)
def test_a_text_is_read_twice_and_judged_once(text, tmp_path, read, make, first, resumed):
    """For the vocabulary and for the ids, once if the run has both, and once more to hold out a dev set."""
    files, dev = [text / "train.en", text / "train.de"], one_pair(tmp_path)
    assert tt.data.check_text_pairs(*files) == 900 and read(*files) == (1, 1)
    prepared(tt.Trainer(tmp_path / "run", CONFIG, make(files, dev), RECIPE))
    assert read(*files) == (first, 1)
    prepared(tt.Trainer(tmp_path / "run", CONFIG, make(files, dev), RECIPE))
    assert read(*files) == (resumed, 1)
    tokenizer = load_tokenizer(tmp_path / "run/tokenizer.model")
    prepared(tt.Trainer(tmp_path / "other", CONFIG, make(files, dev), RECIPE, tokenizer=tokenizer))
    assert read(*files) == (2, 1)
    tt.data.text_pairs(*files, tokenizer, 512)
    assert read(*files) == (2, 1)


def calls_in(function):
    """Returns what a function returns, and how often each file of the package runs one of its functions meanwhile."""
    calls, package = collections.Counter(), f"{Path(tt.__file__).parent}/"

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, {file.removeprefix(package): count for file, count in calls.items() if file.startswith(package)}


def test_a_pair_passes_few_files_from_a_line_to_the_gradient(text, tmp_path, translator):
    """Not counted are files of `utils` that no line passes, such as the checks of arguments."""
    corpus, tokenizer = tt.TextCorpus((text / "train.en", text / "train.de"), one_pair(tmp_path)), translator.tokenizer
    model = tt.Transformer(dataclasses.replace(CONFIG, num_layers=1, vocab_size=tokenizer.vocab_size))
    model.compile(loss=tt.SmoothedCrossEntropy(0.1))

    def gradients(batch):
        (x, y) = tf.nest.map_structure(tf.constant, batch)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), training=True)
        tape.gradient(loss, model.trainable_variables)

    batch, calls = calls_in(lambda: next(corpus.batches(Batching(tokenizer, 512, 1)).since()).pair())
    # For each line: "lines" opens and checks it, "sources" numbers it, "strings" replaces what is no text in it.
    every_line = {file for file, count in calls.items() if count >= 900}
    assert every_line == {"utils/lines.py", "utils/files.py", "data/sources.py", "tokenizers/strings.py"}
    before = {file for file in calls if not file.startswith("utils/")} | every_line
    chunks = {"data/corpus.py", "data/ids.py", "data/batches.py", "tokenizers/tokenizer.py"}
    assert before == every_line | chunks
    _, calls = calls_in(lambda: gradients(batch))
    assert len({file for file in calls if not file.startswith("utils/")} - before) <= 12


@pytest.mark.parametrize("is_chief", [True, False])
@pytest.mark.parametrize("custom", [True, False])
def test_a_bad_line_raises_in_all_workers(corpus, text, tmp_path, monkeypatch, is_chief, custom):
    """Before the text is tokenized, and before one waits for another."""
    waits = []
    monkeypatch.setattr(distribution, "is_chief", lambda strategy: is_chief)
    monkeypatch.setattr(distribution, "wait_for_all", waits.append)
    monkeypatch.setattr(corpora, "tokenized", None)
    shutil.copytree(text, tmp_path / "text")
    files = [tmp_path / "text/train.en", tmp_path / "text/train.de"]
    lines = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join([*lines[:-1], b"caf\xe9\n"]))
    options = {"tokenizer": corpus.train_tokenizer(350, "bpe")} if custom else {}
    trainer = tt.Trainer(tmp_path / "run", CONFIG, tt.TextCorpus(files, one_pair(tmp_path)), RECIPE, **options)
    with pytest.raises(tt.BadInput, match=r"/train\.de, line 900: expected a sentence in UTF-8, got the byte 0xe9"):
        trainer.fit()
    assert len(waits) == 1 and not (tmp_path / "run").exists()


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
