"""The example for small corpora: its stages, its teachers, and interrupted runs."""

import dataclasses

import numpy as np
import pytest
from programs import checkpoint, fails, options
from test_data import expected_rows

import tf_transformer as tt
from examples.multi30k import teachers, train
from examples.multi30k.corpus import Methods, StagedCorpus, with_translations
from examples.multi30k.stages import StagedTrainer, dropout_stages
from tf_transformer.data import toy_corpus
from tf_transformer.data.corpus import Batching, Corpus
from tf_transformer.data.sources import MemorySource
from tf_transformer.inference.engine import Hypothesis, TranslationResult
from tf_transformer.tokenizers.tokenizer import FIRST_ID, UNKNOWN_ID
from tf_transformer.training.run import Run
from tf_transformer.utils.files import checksum
from trainers import publishing

PAIRS = 43


def corpus_of(pairs):
    """Returns a corpus of pairs in memory."""
    return Corpus(MemorySource(*(list(side) for side in zip(*pairs, strict=True))), (["a"], ["b"]))


@pytest.fixture(scope="module")
def text():
    pairs = toy_corpus.corpus(train=701, dev=0, test=0)["train"]
    return pairs, tt.Tokenizer.train_from_iterator([side for pair in pairs for side in pair], 400)


def staged(pairs, folders=(), **methods):
    """Returns a corpus with only these methods."""
    none = {"dropout_steps": 0, "bidirectional_steps": 0, "word_dropout": 0.0}
    return StagedCorpus.of(corpus_of(pairs), Methods(**(none | methods)), folders)


def rows(batches, end, begin=0):
    """Returns (source, target_in, target_out) of every row of some batches, as tuples without padding."""
    result = (row for index in range(begin, end) for row in zip(*batches[index][:3], strict=True))
    return [tuple(tuple(ids[ids != 0].tolist()) for ids in row) for row in result]


def by_steps(pairs, tokenizer, folders=(), **methods):
    return staged(pairs, folders, **methods).batches(Batching(tokenizer, 512, 1))


@pytest.mark.slow
def test_the_first_steps_learn_both_directions(text):
    """Later steps learn the pairs in the order of a run without the method."""
    pairs, tokenizer = text[0][:101], text[1]
    forwards = expected_rows(pairs, tokenizer)
    backwards = expected_rows([(target, source) for source, target in pairs], tokenizer)
    trained = rows(by_steps(pairs, tokenizer, bidirectional_steps=90), 90)
    assert sum(row in backwards for row in trained) == pytest.approx(len(trained) / 2, rel=0.05)
    assert 30 < sum(row in backwards for row in trained[:100]) < 70  # mixed, not one after the other
    assert set(trained) <= {*forwards, *backwards} and len(set(trained)) > 0.95 * 2 * len(pairs)
    short = by_steps(pairs, tokenizer, bidirectional_steps=7)
    assert rows(short, 27, 7) == rows(by_steps(pairs, tokenizer), 20)
    for ids, line in zip(short[0].source, short[0].lines, strict=True):
        assert tuple(ids[ids != 0]) in (forwards[line - 1][0], backwards[line - 1][0])


def test_translations_join_the_pairs_after_the_first_steps(text, tmp_path):
    """They arrive next to the pairs that they translate. Only the pairs train the vocabulary."""
    pairs, tokenizer = text[0][:101], text[1]
    folders = [tmp_path / "0", tmp_path / "1"]
    for k, folder in enumerate(folders):
        folder.mkdir()
        for name in ("forward", "backward"):
            (folder / f"{name}.txt").write_text("".join(f"{name} {k} of {i}\n" for i in range(1, len(pairs) + 1)))
    read = list(corpus_of(pairs).train.rows())
    assert list(with_translations(read, [])) == read
    joined = [(source.decode(), target.decode(), line) for line, source, target in with_translations(read, folders)]
    assert sorted(joined) == sorted(
        pair
        for line, (source, target) in enumerate(pairs, 1)
        for pair in (
            (source, target, line),
            *((source, f"forward {k} of {line}", line) for k in range(2)),
            *((f"backward {k} of {line}", target, line) for k in range(2)),
        )
    )
    with_them = by_steps(pairs, tokenizer, folders, bidirectional_steps=5)
    assert rows(with_them, 5) == rows(by_steps(pairs, tokenizer, bidirectional_steps=5), 5)
    sources = {source for source, *_ in expected_rows([(source, target) for source, target, _ in joined], tokenizer)}
    assert {row[0] for row in rows(with_them, 90, 5)} <= sources
    assert with_them.summary().pairs == 5 * len(pairs)
    assert sorted(staged(pairs, folders).train.sentences()) == sorted(side for pair in pairs for side in pair)


@pytest.mark.slow
def test_words_are_hidden_after_the_bidirectional_steps(text):
    """Seed and step determine the words, in source and target_in, but not in the labels."""
    pairs, tokenizer = text

    def batches(rate=0.25):
        dropped = by_steps(pairs, tokenizer, bidirectional_steps=11, word_dropout=rate)
        return [dropped[index] for index in range(29)]

    whole, hidden = batches(rate=0.0), batches()
    for step, (before, after) in enumerate(zip(whole, hidden, strict=True)):
        for side, (ids, changed) in enumerate(zip(before, after, strict=True)):
            unlike = ids != changed
            assert unlike.any() == (step >= 11 and side < 2)
            assert (changed[unlike] == UNKNOWN_ID).all() and (ids[unlike] >= FIRST_ID).all()
    for side in (0, 1):
        count = sum((ids[side] >= FIRST_ID).sum() for ids in whole[11:])
        assert sum((ids[side] == UNKNOWN_ID).sum() for ids in hidden[11:]) / count == pytest.approx(0.25, abs=0.03)
    assert len({str(ids[0][:2, :5] == UNKNOWN_ID) for ids in hidden[11:]}) > 9  # others in every batch
    assert all(map(np.array_equal, batches()[23], hidden[23]))
    ids = np.full([13, 11], FIRST_ID, np.int32)
    dropped = by_steps(pairs, tokenizer, word_dropout=0.25)
    assert (dropped._hidden(ids, [1, 3, 0]) != dropped._hidden(ids, [2, 3, 0])).any()  # and on either side


@pytest.mark.parametrize(
    ("over", "interval", "steps", "expected"),
    [
        (4_500, 500, 13_000, {1_500: 0.0, 3_000: 0.1, 4_500: 0.2, 13_000: 0.3}),
        (1_300, 500, 13_000, {500: 0.0, 1_000: 0.1, 1_500: 0.2, 13_000: 0.3}),
        (4_500, 500, 2_000, {1_500: 0.0, 2_000: 0.1}),
        (9, 7, 11, {7: 0.0, 11: 0.2}),
        (0, 500, 13_000, {0: 0.0, 13_000: 0.3}),
    ],
)
def test_dropout_grows_in_thirds_that_end_at_checkpoints(over, interval, steps, expected):
    assert dropout_stages(0.3, over, interval, steps) == pytest.approx(expected)


@pytest.fixture
def argv(tmp_path, monkeypatch):
    """Options of a program that trains a very small model, which is not exported."""
    small = dataclasses.replace(tt.PRESETS["small"], num_layers=1, d_model=16, d_ff=8)
    monkeypatch.setitem(tt.PRESETS, "small", small)
    monkeypatch.setattr(publishing, "publish", lambda *args: tmp_path)
    toy_corpus.write_corpus(tmp_path, train=PAIRS, dev=5, test=5)
    argv = "--batch-tokens 256 --eval-every 3 --average-last 2 --length-penalty 0.9 --steps 8 --beam-size 2"
    argv += " --vocab-size 350 --dropout-steps 0 --bidirectional-steps 5 --cooldown-steps 2 --seed 5"
    return options(tmp_path, *argv.split(), "--run", tmp_path / "run")


@pytest.fixture
def runs(argv, tmp_path, monkeypatch):
    """Runs the program without training. Returns the runs that it would train and the translations, in order."""
    done = []

    def fit(self, until):
        recipe, corpus, name = self.recipe, self.corpus, self.run.path.name
        self.run.begin(self.settings)
        self.steps, self.began = recipe.steps, self.step
        if self.step < until:
            checkpoint(self.run.path, until)
        by = [folder.name for folder in corpus.teachers]
        done.append((name, recipe.seed, until, round(self.config.dropout, 3), recipe.cooldown_steps, by))

    def translate(trainer, sides, search):
        done.append(f"{trainer.run.path.name} translates at {trainer.step}")
        assert search == {"beam_size": 2, "length_penalty": 0.9} and [len(side) for side in sides] == [PAIRS, PAIRS]
        for file, side in zip(("forward.txt", "backward.txt"), sides, strict=True):
            (trainer.run.path / file).write_text("".join(f"{trainer.run.path.name} {text}\n" for text in side))

    def main(*more, of=()):
        del done[:]
        train.main([*argv, *more, *(["--teachers", *(str(tmp_path / name) for name in of)] if of else [])])
        return list(done)

    monkeypatch.setattr(tt.Trainer, "fit", fit)
    monkeypatch.setattr(teachers, "translate", translate)
    monkeypatch.setattr(publishing, "is_complete", lambda trainer: True)
    return main


def test_a_run_resumes_with_the_dropout_of_its_step(runs, tmp_path):
    """It grows at the steps 3 and 6, the checkpoints after a third and two thirds of 4 steps."""
    stages = [("run", 5, until, rate, 2, []) for until, rate in ((3, 0.0), (6, 0.2), (9, 0.3))]
    for step, rest in ((0, stages), (1, stages), (3, stages[1:]), (4, stages[1:]), (6, stages[2:]), (9, stages[2:])):
        if step:
            checkpoint(tmp_path / "run", step)
        assert runs("--steps", "9", "--dropout-steps", "4") == rest
        settings = Run(tmp_path / "run").settings()
        assert settings["model"]["dropout"] == 0.3 and settings["recipe"]["cooldown_steps"] == 2
        for folder in (tmp_path / "run/checkpoints").iterdir():
            for file in folder.iterdir():
                file.unlink()


BOTH = [("one", 6, 5, 0.3, 0, []), "one translates at 5", ("two", 7, 5, 0.3, 0, []), "two translates at 5"]
BOTH += [("run", 5, 5, 0.3, 0, [])]


def test_all_learn_both_directions_with_their_own_seeds_and_only_once(runs, tmp_path):
    assert runs("--student-dropout", "0.05", of=("one", "two")) == [*BOTH, ("run", 5, 8, 0.05, 2, ["one", "two"])]
    for name, of in (("one", {}), ("run", {"teachers": [str(tmp_path / "one"), str(tmp_path / "two")]})):
        settings = Run(tmp_path / name).settings()
        assert settings["model"]["dropout"] == 0.3 and settings["recipe"]["cooldown_steps"] == 2
        of |= {"student_dropout": 0.05} if of else {}
        methods = {"dropout_steps": 0, "bidirectional_steps": 5, "word_dropout": 0.1}
        text = {"train": [str(tmp_path / "train.en"), str(tmp_path / "train.de")], "skip_bad_lines": False}
        text["sha256"] = [checksum(file) for file in text["train"]]
        assert settings["corpus"] == text | methods | of

    second = "--run", str(tmp_path / "run_2"), "--seed", "11", "--student-dropout", "0.05"
    trained = ("run_2", 11, 8, 0.05, 2, ["one", "two", "three"])
    first = [("three", 14, 5, 0.3, 0, []), "three translates at 5", ("run_2", 11, 5, 0.3, 0, []), trained]
    assert runs(*second, of=("one", "two", "three")) == first
    (tmp_path / "one/forward.txt").unlink()  # An interrupted teacher resumes, to train or to translate.
    (tmp_path / "two/backward.txt").unlink()
    damage(tmp_path / "two", 5)
    again = ["one translates at 5", ("two", 7, 5, 0.3, 0, []), "two translates at 5", trained]
    assert runs(*second, of=("one", "two", "three")) == again
    damage(tmp_path / "run_2", 8)
    damage(tmp_path / "run_2", 5)
    assert runs(*second, of=("one", "two", "three")) == [("run_2", 11, 5, 0.3, 0, []), trained]


def damage(run, step):
    (run / f"checkpoints/step-{step:08d}/model.weights.h5").write_text("damaged")


def test_in_an_ensemble_each_learns_from_the_next(runs, tmp_path):
    ends = [("one", 6, 8, 0.1, 2, ["two"]), ("two", 7, 8, 0.1, 2, ["run"]), ("run", 5, 8, 0.1, 2, ["one"])]
    assert runs("--ensemble", of=("one", "two")) == [*BOTH, "run translates at 5", *ends]
    for name, other in (("run", "one"), ("one", "two"), ("two", "run")):
        assert Run(tmp_path / name).settings()["corpus"]["teachers"] == [str(tmp_path / other)]
    # Nothing is done again, except that `fit` looks for missing steps.
    assert runs("--ensemble", of=("one", "two")) == ends
    # They can teach another model, with translations from before they were taught.
    second = runs("--run", str(tmp_path / "run_2"), "--seed", "11", of=("one", "two"))
    assert second == [("run_2", 11, 5, 0.3, 0, []), ("run_2", 11, 8, 0.1, 2, ["one", "two"])]


def test_a_teacher_that_trained_on_cannot_translate_as_before(runs, tmp_path):
    runs("--ensemble", of=("one",))
    for name in ("one", "run"):
        file = tmp_path / name / "backward.txt"
        text = file.read_text()
        file.unlink()
        with pytest.raises(tt.BadInput, match=f"{name}: expected .*made at step 5, found .* gone on to step 8"):
            runs("--ensemble", of=("one",))
        file.write_text(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--bidirectional-steps", "-1"], "bidirectional_steps: expected 0 or more, got -1"),
        (["--word-dropout", "1"], "word_dropout: expected a rate in [0, 1), got 1.0"),
        (["--student-dropout", "0"], "--student-dropout: expected --teachers with it, got none"),
        (["--ensemble"], "--ensemble: expected --teachers with it, got none"),
        (["--epochs", "3"], "unrecognized arguments: --epochs"),
        (["--train", "nowhere.en", "nowhere.de"], "found none at nowhere.en"),
        (["--teachers", "one", "--bidirectional-steps", "0"], "expected bidirectional_steps from 1 to 7, below all"),
        (["--teachers", "one", "one/../one"], "expected different directories, got the run "),
    ],
)
def test_bad_options(argv, tmp_path, capsys, change, message):
    for dry in ([], ["--dry-run", "8x9.5"]):
        assert message in fails(train, [*argv, *change, *dry], capsys)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("folder", "change"), [("run", []), ("one", ["--teachers", "one"])])
def test_a_dry_run_reads_the_directories_of_all_runs(argv, tmp_path, monkeypatch, capsys, folder, change):
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "notes").touch()
    for dry in ([], ["--dry-run", "8x9.5"]):
        message = fails(train, [*argv, *change, *dry], capsys)
        assert f"{folder}: expected a run or an empty directory" in message, (message, dry)


def test_teachers_are_looked_at_before_any_is_trained(runs, tmp_path):
    (tmp_path / "new_text").mkdir()
    toy_corpus.write_corpus(tmp_path / "new_text", train=PAIRS + 1, dev=5, test=5)

    def assert_rejected(message, *options, of=("new", "old")):
        with pytest.raises(tt.BadInput, match=message):
            runs(*options, of=of)
        assert not (tmp_path / "new").exists()

    runs("--run", str(tmp_path / "old"), "--seed", "7")
    for lines in (PAIRS - 1, PAIRS + 1):
        for name in ("forward.txt", "backward.txt"):
            (tmp_path / "old" / name).write_text("Haus\n" * (lines - 1) + "\n")
        assert_rejected(f"old: expected a translation for each of 43 training pairs, got {lines}")
    (tmp_path / "old/forward.txt").write_text("Haus\n" * PAIRS)
    assert_rejected(r"expected the same number of lines in both files, got 43 .* and 44")
    assert_rejected(r"old holds a run of another configuration: model.dropout was 0.3, now 0.2", "--dropout", "0.2")
    runs()
    assert_rejected(r"run holds a run of another configuration: .*corpus.teachers was null, now", of=("new",))


@pytest.mark.parametrize(("target", "longest"), [("Two doors open.", None), ("Two doors. " * 9, 7)])
def test_teachers_translate_in_the_dtype_they_learn_in_and_no_longer_than_the_text(
    target, longest, translator, tmp_path, monkeypatch
):
    """Outputs are also at most 7 tokens longer than the source, as the teacher's option says."""
    calls, sides = [], (["Two doors.", "One."], [target, "One."])
    result = TranslationResult("", (Hypothesis("made", 0.0),), 1, False)
    monkeypatch.setattr(teachers, "averaged", lambda *args: translator)
    monkeypatch.setattr(teachers, "answered", lambda *args: calls.append(args) or [result])
    corpus = StagedCorpus.of(corpus_of(zip(*sides, strict=True)), Methods())
    recipe = tt.Recipe(mixed_precision="bfloat16")
    teachers.translate(StagedTrainer(tmp_path, translator.model.config, corpus, recipe), sides, {})
    lengths = [len(translator.tokenizer.tokenize(text)) for text in ("Two doors.", target)]
    for (teacher, texts), name, side in zip(calls, ("forward.txt", "backward.txt"), sides, strict=True):
        assert texts == side and (tmp_path / name).read_text() == "made\n"
        assert teacher.model.compute_dtype == "bfloat16"
        assert teacher.extra_length == (longest or lengths[1] - lengths[0])
