"""Data diversification: what a model's teachers make of its text is what it learns from, beside the text."""

import argparse
import json
import re

import pytest
import sentencepiece
from programs import checkpoint, same_weights

import tf_transformer as tt
from tf_transformer import grammar
from trainers import teachers, translation

PAIRS = 43


@pytest.fixture
def argv(tmp_path):
    grammar.write_corpus(tmp_path, train=PAIRS, dev=5, test=5)
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
