"""Data diversification: what a model's teachers make of its text is what it learns from, beside the text."""

import argparse
import json
import re

import numpy as np
import pytest
import sentencepiece
from programs import checkpoint, same_weights

import tf_transformer as tt
from tf_transformer import toy_corpus
from trainers import teachers, translation

PAIRS = 43


@pytest.fixture
def argv(tmp_path):
    toy_corpus.write_corpus(tmp_path, train=PAIRS, dev=5, test=5)
    argv = "--batch-tokens 256 --eval-every 3 --average-last 2 --alpha 0.9 --steps 8 --beam-size 2 --vocab-size 350"
    argv += f" --bidirectional-steps 5 --cooldown-steps 2 --seed 5 --run {tmp_path / 'run'}"
    argv = argv.split()
    for split in ("train", "dev"):
        argv += [f"--{split}", *(str(tmp_path / f"{split}.{language}") for language in ("en", "de"))]
    return argv


def test_all_learn_both_directions_with_their_own_seeds_and_only_once(argv, tmp_path, monkeypatch):
    learned, students = [], []

    def learn(tt, args, strategy, config, recipe, run, settings, texts):
        assert args.seed == settings["data"]["seed"] and config.dropout == settings["model"]["dropout"] == 0.1
        assert recipe["bidirectional_steps"] == settings["training"]["bidirectional_steps"] == texts.bidirectional_steps
        assert ("teachers" in settings["data"]) == run.path.name.startswith("run")
        assert args.steps == 5 and not texts.translations and texts.count == PAIRS
        assert recipe["cooldown_steps"] == 0 and settings["training"]["cooldown_steps"] == args.cooldown_steps
        learned.append((run.path.name, args.seed))
        is_new = not (run.path / "config.json").exists()
        run.begin(settings)
        checkpoint(run.path, args.steps)
        return is_new  # as of a run that was complete before

    def translate(tt, args, run, files, sides):
        for file, side in zip(files, sides, strict=True):
            file.write_text("".join(f"{run.path.name} {text}\n" for text in side))

    def main(run, seed, folders, *more):
        more = ["--run", str(tmp_path / run), "--seed", str(seed), "--student-dropout", "0.05", *more]
        translation.main([*argv, *more, "--teachers", *map(str, folders)])

    monkeypatch.setattr(teachers, "learn", learn)
    monkeypatch.setattr(teachers, "translate", translate)
    monkeypatch.setattr(translation, "learn", lambda *given: students.append(given))
    folders = [tmp_path / name for name in ("one", "two", "three")]
    main("run", 5, folders[:2])
    main("run_2", 11, folders)
    assert learned == [("one", 6), ("two", 7), ("run", 5), ("three", 14), ("run_2", 11)]
    for (_, args, _, config, recipe, _, settings, texts), seed, count in zip(students, (5, 11), (2, 3), strict=True):
        assert args.seed == settings["data"]["seed"] == seed and args.steps == 8
        assert config.dropout == settings["training"]["student_dropout"] == 0.05 and settings["model"]["dropout"] == 0.1
        assert recipe["cooldown_steps"] == settings["training"]["cooldown_steps"] == 2
        assert settings["data"]["teachers"] == [str(folder) for folder in folders[:count]]
        assert texts.translations == tuple((path / "forward.txt", path / "backward.txt") for path in folders[:count])
        assert texts.count == (1 + 2 * count) * PAIRS

    (folders[0] / "forward.txt").unlink()  # one that was stopped before its end goes on, to learn or only to translate
    (folders[1] / "backward.txt").unlink()
    damage(folders[1])
    main("run_2", 11, folders)
    assert learned[5:] == [("two", 7)]
    assert (folders[0] / "forward.txt").exists() and (folders[1] / "backward.txt").exists()
    damage(tmp_path / "run_2")
    main("run_2", 11, folders)
    assert learned[6:] == [("run_2", 11)]
    # Another student of theirs may learn otherwise.
    main("run_3", 13, folders[:2], "--word-dropout", "0.3", "--cooldown-steps", "0", "--steps", "7")
    assert learned[7:] == [("run_3", 13)] and students[-1][1].steps == 7


def damage(run):
    """Its last checkpoint; one of step 3 is the newest whole one."""
    checkpoint(run, 3)
    (run / "checkpoints/step-00000005/model.weights.h5").write_text("damaged")


@pytest.fixture
def ensemble(argv, tmp_path, monkeypatch):
    """The program with --ensemble, where nothing is learned; it gives the runs that would learn, in order."""
    done = []

    def learn(tt, args, strategy, config, recipe, run, settings, texts):
        assert args.seed == settings["data"]["seed"] and settings["model"]["dropout"] == 0.1
        assert config.dropout == (0.05 if texts.translations else 0.1)
        assert recipe["cooldown_steps"] == (2 if texts.translations else 0)
        assert texts.count == (1 + 2 * len(texts.translations)) * PAIRS
        done.append((run.path.name, args.seed, args.steps, [forward.parent.name for forward, _ in texts.translations]))
        run.begin(settings)
        checkpoint(run.path, args.steps)

    def translate(tt, args, run, files, sides):
        done.append(f"{run.path.name} translates at {run.newest()[1]['step']}")
        for file, side in zip(files, sides, strict=True):
            file.write_text("".join(f"{run.path.name} {text}\n" for text in side))

    def main(*names, more=("--ensemble",)):
        del done[:]
        folders = [str(tmp_path / name) for name in names]
        translation.main([*argv, "--student-dropout", "0.05", "--teachers", *folders, *more])
        return list(done)

    monkeypatch.setattr(teachers, "learn", learn)
    monkeypatch.setattr(teachers, "translate", translate)
    monkeypatch.setattr(translation, "learn", learn)  # which says that there is nothing to score
    return main


def test_in_an_ensemble_each_learns_from_the_next(ensemble, tmp_path):
    assert ensemble("one", "two") == [
        ("one", 6, 5, []),
        "one translates at 5",
        ("two", 7, 5, []),
        "two translates at 5",
        ("run", 5, 5, []),
        "run translates at 5",
        ("one", 6, 8, ["two"]),
        ("two", 7, 8, ["run"]),
        ("run", 5, 8, ["one"]),
    ]
    for name, other in (("run", "one"), ("one", "two"), ("two", "run")):
        assert tt.run.Run(tmp_path / name).settings()["data"]["teachers"] == [str(tmp_path / other)]
    # What is there is not done again, but for the look of `learn`, which sees what is missing.
    again = ensemble("one", "two")
    assert again == [("one", 6, 8, ["two"]), ("two", 7, 8, ["run"]), ("run", 5, 8, ["one"])]
    # They are the teachers of another model, too, with what they said before they were taught.
    before = {file: file.read_bytes() for name in ("one", "two") for file in (tmp_path / name).rglob("*.*")}
    argv = "--run", str(tmp_path / "run_2"), "--seed", "11"
    assert ensemble("one", "two", more=argv) == [("run_2", 11, 5, []), ("run_2", 11, 8, ["one", "two"])]
    assert before == {file: file.read_bytes() for name in ("one", "two") for file in (tmp_path / name).rglob("*.*")}


def test_who_has_gone_on_can_no_longer_say_what_it_would_have_said(ensemble, tmp_path):
    ensemble("one")
    for name in ("one", "run"):
        files = [tmp_path / name / file for file in ("forward.txt", "backward.txt")]
        text = files[1].read_text()
        files[1].unlink()
        message = (
            rf"{name}: expected forward.txt and backward.txt, made at step 5, found a run that has gone on to step 8"
        )
        with pytest.raises(tt.BadInput, match=message):
            ensemble("one")
        files[1].write_text(text)
    ensemble("two", more=("--run", str(tmp_path / "run_2")))
    with pytest.raises(tt.BadInput, match=r"two holds a run .*: data.teachers was null, now \[\".*run\"\]"):
        ensemble("two")


@pytest.mark.parametrize("together", [False, True])
def test_what_is_scored_and_exported(ensemble, tmp_path, monkeypatch, together):
    class Seen(Exception):
        pass

    def averaged(tt, args, *models):
        raise Seen(*models)

    monkeypatch.setattr(translation, "averaged", averaged)
    monkeypatch.setattr(translation, "learn", lambda *given: True)
    with pytest.raises(Seen) as seen:
        ensemble("one", "two", more=["--ensemble"] * together)
    model, *others = seen.value.args
    assert model.path == tmp_path / "run" and others == [tmp_path / "one", tmp_path / "two"] * together


def test_a_plan_counts_the_teachers(argv, capsys):
    for more, said in ((["--ensemble"], "and as much for each of 2 teachers"), ([], "and 5 steps for each of 2 teach")):
        translation.main([*argv, "--dry-run", "--teachers", "one", "two", *more])
        assert f"\n{said}" in capsys.readouterr().out


def test_teachers_are_looked_at_before_any_is_trained(argv, tmp_path, monkeypatch):
    monkeypatch.setattr(teachers, "learn", lambda *given: pytest.fail("trained"))
    monkeypatch.setattr(translation, "learn", lambda *given: pytest.fail("trained"))
    new, old, run = (str(tmp_path / name) for name in ("new", "old", "run"))

    def refused(message, *more):
        with pytest.raises(tt.BadInput, match=message):
            translation.main([*argv, *more])

    refused("--teachers: expected --bidirectional-steps above 0", "--bidirectional-steps", "0", "--teachers", new)
    refused("expected more --steps than the 5 bidirectional, got 5", "--steps", "5", "--teachers", new)
    refused("expected different folders, got --run .*run --teachers .*new .*new", "--teachers", new, new)
    refused("expected different folders", "--teachers", new, f"{new}/../run")

    settings = settings_of([*argv, "--seed", "7"], monkeypatch)
    tt.run.Run(old).begin(settings)
    for lines in (PAIRS - 1, PAIRS + 1):
        for name in ("forward.txt", "backward.txt"):
            (tmp_path / "old" / name).write_text("Haus\n" * (lines - 1) + "\n")
        refused(f"old: expected as many translations as there are pairs .*, 43, got {lines}", "--teachers", new, old)
    (tmp_path / "old/forward.txt").write_text("Haus\n" * PAIRS)
    refused(r"expected as many lines in both files, got 43 .* and 44", "--teachers", new, old)
    changed = r"old holds a run of another configuration: model.dropout was 0.1, now 0.2"
    refused(changed, "--dropout", "0.2", "--teachers", new, old)
    tt.run.Run(run).begin(settings_of(argv, monkeypatch))
    no_teachers = r"run holds a run of another configuration: data.teachers was null, now"
    refused(no_teachers, "--teachers", new)
    assert not (tmp_path / "new").exists()


def settings_of(argv, monkeypatch):
    """What config.json would say."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(translation, "learn", lambda *given: found.append(given[-2]))
        translation.main(argv)
    return found[0]


@pytest.mark.parametrize(("target", "longest"), [("Two doors open.", None), ("Two doors. " * 9, 7)])
def test_teachers_translate_in_the_dtype_they_learn_in_and_no_longer_than_the_text(
    target, longest, translator, tmp_path, monkeypatch
):
    """Nor longer than they would: 7 tokens more than the source."""
    found = []
    monkeypatch.setattr(teachers, "averaged", lambda *given: translator)
    monkeypatch.setattr(teachers, "in_parts", lambda *given: found.append(given) or ["made"])
    sides, files = (["Two doors.", "One."], [target, "One."]), (tmp_path / "forward.txt", tmp_path / "backward.txt")
    teachers.translate(tt, argparse.Namespace(mixed_precision="bfloat16"), None, files, sides)
    lengths = [len(translator.tokenizer.tokenize(text)) for text in ("Two doors.", target)]
    for (teacher, texts), file, side in zip(found, files, sides, strict=True):
        assert texts == side and file.read_text() == "made\n"
        assert teacher.model.compute_dtype == "bfloat16"
        assert teacher.extra_length == (longest or lengths[1] - lengths[0])


@pytest.mark.slow
def test_a_model_learns_from_its_teacher(argv, tmp_path, monkeypatch, capsys):
    """Which is what the model itself would be after its bidirectional steps, with the teacher's seed."""
    monkeypatch.setattr(translation, "publish", lambda *given: tmp_path)
    folder, alone = tmp_path / "teacher", list(argv)
    argv += ["--teachers", str(folder)]
    translation.main(argv)
    said = re.findall(r"training text: (\d+) pairs, .* (\d+) skipped", capsys.readouterr().out)
    assert [sum(map(int, numbers)) for numbers in said] == [PAIRS, PAIRS, 3 * PAIRS]

    alone[alone.index("--run") + 1] = str(tmp_path / "alone")
    alone[alone.index("--seed") + 1] = "6"
    translation.main([*alone, "--steps", "5", "--cooldown-steps", "0"])
    same_weights(tmp_path / "alone", folder)

    english, german = ((tmp_path / f"train.{language}").read_text().splitlines() for language in ("en", "de"))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    longest = max(abs(len(a) - len(b)) for a, b in zip(pieces.encode(english), pieces.encode(german), strict=True))
    made = tt.Translator.from_run(folder, 2, beam_size=2, alpha=0.9, extra_length=longest)
    for file, text in (("forward.txt", english), ("backward.txt", german)):
        assert (folder / file).read_text().splitlines() == list(made(text))

    # In a process that did not train its teacher, too, it learns the same.
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    argv[argv.index("--run") + 1] = str(tmp_path / "again")
    translation.main(argv)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    same_weights(tmp_path / "run", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["data"]["teachers"] == [str(folder)]


@pytest.mark.slow
def test_an_ensemble_is_of_what_each_would_be_alone(argv, tmp_path, monkeypatch):
    """With the other as the teacher that it learns from."""
    exports = []
    monkeypatch.setattr(translation, "publish", lambda tt, args, run, export, *more: exports.append(export) or tmp_path)
    run, teacher = tmp_path / "run", tmp_path / "teacher"
    translation.main([*argv, "--teachers", str(teacher), "--ensemble"])
    weights = [weight for folder in (run, teacher) for weight in tt.Translator.from_run(folder, 2).model.get_weights()]
    for found, expected in zip(exports[0].weights, weights, strict=True):
        np.testing.assert_array_equal(found, expected)

    alone = {seed: [*argv, "--seed", str(seed), "--run", str(tmp_path / f"alone_{seed}")] for seed in (5, 6)}
    other = [*argv, "--seed", "5", "--run", str(tmp_path / "other_5"), "--steps", "5", "--cooldown-steps", "0"]
    translation.main(other)
    translation.main([*alone[6], "--teachers", str(tmp_path / "other_5")])
    same_weights(tmp_path / "alone_6", teacher)
    translation.main([*alone[5], "--teachers", str(tmp_path / "other_6")])
    same_weights(tmp_path / "alone_5", run)
