"""The benchmarks run, measure the work that they report, and compute ratios. No time is asserted."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from benchmarks import (
    common,
    compare,
    draw,
    feeding,
    growth,
    input_pipeline,
    layer_types,
    marian,
    patience,
    records,
    training,
    translation,
)

TINY = common.WORKS["tiny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """A process sets its threads once, and all tests share the policy."""
    monkeypatch.setattr(common, "prepare_tensorflow", lambda *args, **kwargs: tf)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


def one_line(capsys, program, *options):
    """Returns a program's last line, which is also its result."""
    returned = program.main(["--config", "tiny", *map(str, options)])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line == returned
    assert line["benchmark"] and line["engine"] == "tf_transformer" and line["config"] == "tiny"
    assert line["threads"] > 0 and line["peak_mib"] > 0 and line["versions"]["tensorflow"] == tf.__version__
    return line


@pytest.mark.slow
def test_training(capsys):
    options = ("--pairs", 67, "--length", 41, "--num-microbatches", 2)
    line = one_line(capsys, training, "--dtype", "bfloat16", "--steps", 3, "--warmup", 2, *options)
    assert line["dtype"] == "bfloat16" and line["timed"] == 3 and line["num_microbatches"] == 2
    assert line["tokens_per_second"] == pytest.approx(67 * 41 * 1e3 / line["milliseconds"], rel=1e-2)
    logits = 67 // 2 * 41 * TINY.vocab_size * 2 / 2**20  # of a part
    assert logits < line["step_mib"] < line["peak_mib"]


@pytest.mark.slow
def test_translation(folder, capsys):
    line = one_line(capsys, translation, "--repeats", 2, "--warmup", 1, "--sentences", 3, "--work", folder)
    assert line["timed"] == 2 and line["request_mib"] >= 0 and line["saved_mib"] > 0
    assert line["tokens_per_second"] == pytest.approx(3 * TINY.steps * 1e3 / line["milliseconds"], rel=1e-2)


def test_input_pipeline(folder, capsys):
    options = ("--lines", 200, "--seconds", 0, "--batch-tokens", 300, "--training-rate", 2, "--work", folder)
    line = one_line(capsys, input_pipeline, *options)
    assert line["times_training"] == pytest.approx(line["tokens_per_second"] / 2, abs=0.1)


@pytest.mark.slow
def test_feeding_and_records(folder, capsys):
    line = one_line(capsys, feeding, "--text", 997, "--max-length", 31, "--batch-tokens", 197, "--steps", 3)
    assert 7 < line["shapes"] <= 13 and 0.5 < line["share_of_positions"] < 1
    line = one_line(capsys, records, "--lines", 300, "--seconds", 0, "--batch-tokens", 300, "--work", folder)
    assert line["pairs"] == 300 and line["tokens_per_second"] > 0 and line["bytes"] > 300 * 20


@pytest.mark.slow
def test_growth_writes_a_table_and_its_figure(folder, capsys):
    table, figure = folder / "growth.csv", folder / "growth.svg"
    options = ("--longest", 13, "--repeats", 1, "--out", table, "--work", folder)
    line = one_line(capsys, growth, "--tasks", "search step", "training", "translation", *options)
    assert line["points"] == len(table.read_text().splitlines()) - 1 == 12 + 7 + 1 + 7 + 5 + 2
    assert line["step_10_milliseconds"] > 0
    draw.main([str(table), str(figure)])
    assert "</svg>" in figure.read_text()


def test_layer_types_have_the_exponents_of_what_was_measured(folder, capsys):
    rows = []
    for layer, n_power, d_power in (("self-attention", 2, 1), ("recurrent", 1, 2)):
        sizes = [("n", n, 16) for n in (3, 32, 64, 128, 256)] + [("d", 64, d) for d in (5, 16, 32, 64, 128)]
        for varied, n, d in sizes:
            unsettled = 1000 * (min(n, d) < 16)  # what is small does not count
            time, memory = n**n_power * d**d_power / 7 + unsettled, 3 * n * d + unsettled
            row = {"layer": layer, "varied": varied, "n": n, "d": d, "milliseconds": time, "mib": memory}
            rows += [row, row | {"milliseconds": time * n}]  # once more, when others disturbed it
    rows += [{"layer": "convolutional", "varied": "n", "n": n, "d": 16, "milliseconds": n, "mib": 0.0} for n in (2, 4)]
    found = layer_types.exponents(rows)
    assert found.pop("convolutional") == {"time, n": 1, "memory, n": None}
    assert found["self-attention"] == {"time, n": 2, "memory, n": 1, "time, d": 1, "memory, d": 1}
    assert found["recurrent"] == {"time, n": 1, "memory, n": 1, "time, d": 2, "memory, d": 1}
    lines = layer_types.table(found).splitlines()
    assert lines[2] == "| self-attention | O(n² d) | O(1) | O(1) | 2.0 | 1.0 | 1.0 | 1.0 |"


@pytest.mark.slow
def test_layer_types(folder, capsys):
    """Self-attention is omitted, whose weights take more than the memory limit."""
    options = ("--longest", 256, "--length", 32, "--window", 4, "--rounds", 2, "--most-mib", 0)
    picture = folder / "layers.png"
    line = one_line(capsys, layer_types, *options, "--picture", picture)
    assert line["points"] == 4 * (8 + 4) and set(line["exponents"]) == set(layer_types.TYPES) - {"self-attention"}
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_compare_takes_turns_and_writes_lines(folder, capsys):
    out, picture = folder / "lines.jsonl", folder / "bars.png"
    options = ["--config", "tiny", "--task", "translation", "--rounds", "2", "--repeats", "1", "--sentences", "3"]
    options += ["--engines", "tf_transformer", "opennmt_tf", "--out", str(out), "--picture", str(picture)]
    (row,) = compare.main([*options, "--work", str(folder)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1] and row["rounds"] == 2 and row["loader"] == "c"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    printed = capsys.readouterr()
    assert "| tf_transformer (tf-transformer " in printed.out and "opennmt_tf: left out" in printed.err


def test_the_table_has_each_engine_at_its_best_and_the_ratio_of_ours():
    def line(engine, rate, threads=2, mode=None):
        metadata = {"engine": engine, "tokens_per_second": rate, "threads": threads, "dtype": "float32", "mode": mode}
        return metadata | {"others_cores": 0.0, "versions": {"x": "1"}, "peak_mib": 7.0}

    rows = common.summary(
        [line("tf_transformer", rate) for rate in (290.0, 300.0, 700.0)]
        + [line("peer", 110.0), line("peer", 130.0), line("peer", 150.0, threads=1), line("peer", 99.0, mode="xla")]
    )
    assert [(row["engine"], row["tokens_per_second"], row["ratio"]) for row in rows] == [
        ("tf_transformer", 300.0, 1.0),
        ("peer", 150.0, 2.0),
    ]
    assert "| peer (x 1) | float32 | 1 | 150 (150 to 150) | 2.0 | - | 7 |" in compare.table(rows)
    assert "Not a quiet machine" not in compare.table(rows)


def test_a_checkpoint_is_compared_with_transformers(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sources, references = (tmp_path / name for name in ("sources", "references"))
    sources.write_text("The women do not sing.\nHe is tired.\n")
    references.write_text("Die Frauen singen nicht.\nEr ist müde.\n")
    options = ["--source", str(sources), "--reference", str(references), "--longest", "23"]
    lines = marian.main([str(Path(__file__).parent / "marian/trained"), *options])
    assert [line["check"] for line in lines] == ["source ids", "target ids", "texts of target ids", "greedy", "4 beams"]
    assert all(line["same"] == 2 and line["unexplained"] == 0 for line in lines)
    assert all(line["bleu"] == line["bleu_there"] > 20 for line in lines[3:])
    assert "| target ids | 2 | 2 |" in capsys.readouterr().out


def test_bars_are_drawn_from_lines_by_kind_of_work(tmp_path):
    line = {"benchmark": "training", "config": "tiny", "threads": 2, "others_cores": 0.0}
    rates = [(307.0, "float32"), (101.0, "float32"), (211.0, "float32"), (701.0, "bfloat16")]
    lines = [line | {"engine": "one", "tokens_per_second": rate, "dtype": dtype} for rate, dtype in rates]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    draw.main([str(tmp_path / "lines.jsonl"), str(tmp_path / "bars.svg")])
    picture = (tmp_path / "bars.svg").read_text()
    assert "<!-- 211 -->" in picture and "<!-- 307 -->" not in picture  # the median
    for kind in ("float32", "bfloat16 or int8"):
        assert f"<!-- training, tiny, {kind}: tokens/s -->" in picture


def test_losses_of_runs_are_drawn_by_name(tmp_path):
    for name, loss in (("whole", 7.0), ("half", 5.0)):
        (tmp_path / name).mkdir()
        rows = [f"{step},{loss - step / 100},{loss}" for step in (11, 23, 37)]
        (tmp_path / name / "history.csv").write_text("\n".join(["step,loss,val_loss", *rows]))
    draw.main([str(tmp_path / "whole"), str(tmp_path / "half"), str(tmp_path / "losses.svg")])
    picture = (tmp_path / "losses.svg").read_text()
    assert "<!-- whole -->" in picture and "<!-- half -->" in picture


def test_eos_cannot_come(folder):
    translator = translation.random_translator(TINY, "float32", folder)
    memory, mask, _ = translator.model.encode(np.array([[5, 6, 7]]))
    logits = translator.model.decode(np.array([[1, 8, 9, 10]]), memory, mask)[0].numpy()
    np.testing.assert_allclose(logits[0, :, 2], -TINY.d_model, rtol=1e-5)
    assert abs(np.delete(logits, 2, axis=-1)).max() < TINY.d_model


def test_work_that_is_not_what_was_meant_is_an_error():
    def output(length):
        return {"source_length": np.array([7]), "lengths": np.array([[length, 6]]), "finished": np.array([[False] * 2])}

    translation.check(lambda name, text: output(6), ["a"], TINY)
    with pytest.raises(AssertionError, match="expected lengths=6"):
        translation.check(lambda name, text: output(5), ["a"], TINY)


def test_the_memory_of_a_request_is_counted_each_time():
    numbers = tf.function(lambda rows: tf.reduce_sum(tf.random.uniform([rows, 2**20])))
    numbers(tf.constant(1))
    found = [common.request_mib(lambda rows=rows: numbers(tf.constant(rows))) for rows in (16, 16, 8)]
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert 63 <= found[1] < 128 and 31 <= found[2] < 64  # as the allocator cuts its pieces, or to the page


@pytest.mark.slow
def test_patience(tmp_path, capsys):
    pairs = tt.toy_corpus.corpus(train=0, dev=40, test=0)["dev"]
    for name, lines in zip(("source", "reference"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    model = str(Path(__file__).parent / "marian/trained")
    options = ["--patience", "0.25", "--length-penalty", "3", "--rounds", "1"]
    first, exact = patience.main([model, *files, *options])
    assert exact["patience"] == np.inf and exact["search_errors"] == 0 < first["search_errors"] < 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 beams, length penalty 3.0, 40 sentences" and lines[3].startswith("| 0.25 | ")
