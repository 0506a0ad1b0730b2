"""Table 3's rows, at another size and by the program."""

import csv

import pytest
from programs import trainer_of
from test_config import TABLE_3

import tf_transformer as tt
from examples.table3 import table as table3
from examples.table3 import train

BASE = tt.PRESETS["base"]


def test_all_rows_of_the_paper_exist():
    assert set(table3.PAPER) == set(TABLE_3)
    assert len(table3.PAPER) == 20


@pytest.mark.parametrize("row", table3.PAPER)
def test_a_row_keeps_its_ratio_to_base(row):
    assert table3.scaled(row, "paper") == tt.PRESETS[row]
    config, base = table3.scaled(row, "multi30k").to_dict(), table3.scaled("base", "multi30k").to_dict()
    assert {name for name in config if config[name] != base[name]} == set(TABLE_3[row])
    for name, value in TABLE_3[row].items():
        if name == "d_k":
            assert config["d_k"] / (base["d_model"] / base["num_heads"]) == value / 64
        elif isinstance(value, int):
            assert config[name] / base[name] == value / getattr(BASE, name)
        else:
            assert config[name] == value


def test_rows_are_chosen_by_name_and_by_group():
    assert table3.chosen("all") == list(table3.PAPER)
    assert table3.chosen("B, big,D_ls0") == ["B_dk16", "B_dk32", "D_ls0", "big"]
    with pytest.raises(tt.BadInput, match="rows: expected all, A to E, or base, .* got F, dk16"):
        table3.chosen("base,F,dk16")


def test_sizes_of_rows_are_no_options(capsys):
    for options, message in ((["--dropout", "0.2"], "since each row sets it"), (["--dry-run"], "--preset ROW")):
        with pytest.raises(SystemExit):
            train.main(["--train", "a", "b", "--dev", "c", "d", *options])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--scale", "paper"], {"steps": 100_000, "batch_tokens": 25_000, "warmup_steps": 4_000, "eval_every": 5_000}),
        (["--scale", "paper", "--rows", "big"], {"steps": 300_000, "eval_every": 5_000}),
        (["--rows", "big"], {"steps": 2_500, "batch_tokens": 2_048, "warmup_steps": 600, "eval_every": 500}),
        (["--steps", "7", "--average-last", "2"], {"steps": 7, "average_last": 2}),
        (["--epochs", "3"], {"epochs": 3}),
    ],
)
def test_the_recipe_of_a_row(text, tmp_path, options, expected):
    sides = [[str(text / f"{split}.{language}") for language in ("en", "de")] for split in ("train", "dev")]
    trainer = trainer_of(train, ["--train", *sides[0], "--dev", *sides[1], "--run", tmp_path, *options])
    usual = {"batch_tokens": 2_048, "warmup_steps": 600, "eval_every": 500, "average_last": 1, "dev_sentences": 200}
    if "paper" in options:
        usual = {"average_last": 1, "dev_sentences": 200}
    assert trainer.recipe == tt.Recipe(**usual | expected)


@pytest.mark.slow
def test_two_rows(unscored, tmp_path, capsys):
    tt.toy_corpus.write_corpus(tmp_path, train=200, dev=11)
    sides = [[str(tmp_path / f"{split}.{language}") for language in ("en", "de")] for split in ("train", "dev")]
    argv = ["--rows", "base,C_N2", "--train", *sides[0], "--dev", *sides[1], "--run", str(tmp_path / "run")]
    argv += ["--vocab-size", "400", "--batch-tokens", "512", "--eval-every", "2", "--beam-size", "2"]
    train.main([*argv, "--steps", "2"])
    for name in ("table3.csv", "table3.md", "table3.png"):
        assert (tmp_path / "run" / name).stat().st_size > 100
    with open(tmp_path / "run" / "table3.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["base", "C_N2"]
    assert [line["what differs"] for line in lines] == ["", "num_layers 1"]
    for line in lines:
        history = (tmp_path / "run" / line["row"] / "history.csv").read_text().splitlines()
        last = dict(zip(*(row.split(",") for row in (history[0], history[-1])), strict=True))
        assert float(line["perplexity"]) == pytest.approx(float(last["val_perplexity"]), abs=1e-3)
    by_parameters = [int(line["parameters"]) for line in lines]
    assert by_parameters[0] - by_parameters[1] == 2 * 461_312  # two layers of both stacks, each of 128 and 512
    capsys.readouterr()
    train.main([*argv, "--steps", "2"])
    assert capsys.readouterr().out.count("this run is complete") == 2
