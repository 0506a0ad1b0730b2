"""The benchmarks run, measure the work that they report, and compute ratios. Times are not checked."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import (
    common,
    compare,
    feeding,
    growth,
    input_pipeline,
    layer_types,
    marian,
    records,
    training,
    translation,
    under_load,
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
    logits = 67 // 2 * 41 * TINY.vocab_size * 2 / 2**20  # of a microbatch
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
@pytest.mark.parametrize(
    ("program", "options", "points"),
    [
        (growth, ["--longest", 13, "--repeats", 1, "--tasks", "search step", "training", "translation"], 34),
        (layer_types, ["--longest", 256, "--length", 32, "--window", 4, "--rounds", 2, "--most-mib", 0], 48),
        (layer_types, ["--longest", 64, "--length", 8, "--rounds", 1, "--backward"], 60),
    ],
)
def test_growth_and_layer_types(folder, capsys, program, options, points):
    options += ["--out", folder / "growth.csv", "--work", folder] if program is growth else []
    assert one_line(capsys, program, *options)["points"] == points


@pytest.mark.slow
def test_compare_takes_turns_and_writes_lines(folder, capsys):
    out, picture = folder / "lines.jsonl", folder / "bars.png"
    options = ["--config", "tiny", "--task", "translation", "--rounds", "2", "--repeats", "1", "--sentences", "3"]
    options += ["--engines", "tf_transformer", "opennmt_tf", "--out", str(out), "--picture", str(picture)]
    (row,) = compare.main([*options, "--work", str(folder)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1] and row["rounds"] == 2 and row["loader"] == "c"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "opennmt_tf: skipped" in capsys.readouterr().err


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


def test_eos_is_never_chosen(folder):
    translator = translation.random_translator(TINY, "float32", folder)
    memory, mask, _ = translator.model.encode(np.array([[5, 6, 7]]))
    logits = translator.model.decode(np.array([[1, 8, 9, 10]]), memory, mask)[0].numpy()
    np.testing.assert_allclose(logits[0, :, 2], -TINY.d_model, rtol=1e-5)
    assert abs(np.delete(logits, 2, axis=-1)).max() < TINY.d_model


STUB = """#!{python}
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, values):
        body = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply({{"status": "ok"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.count = getattr(Handler, "count", 0) + 1
        wrong = len(body["q"]) < 99 and Handler.count > 3 and Handler.count % 2 == 0
        self.reply({{"translatedText": body["q"].upper() + "?" * wrong, "target": body["target"]}})

    def log_message(self, *args):
        pass

assert sys.argv[1] == "serve" and sys.argv[-2:] == ["--workers", "3"], sys.argv
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[4])), Handler).serve_forever()
"""


def test_servers_are_compared_in_a_bounded_number_of_requests(tmp_path, capsys):
    """Outputs are compared with those of requests one by one."""
    (tmp_path / "text").write_text("one\ntwo\nthree\n")
    export, command = tmp_path / "model.tflite", tmp_path / "stub"
    export.touch()
    command.write_text(STUB.format(python=sys.executable))
    command.chmod(0o755)
    argv = ["--serve", tmp_path, "--commands", command, "--options=--workers 3", "--source", tmp_path / "text"]
    argv += ["--clients", 1, 2, "--requests", 10, "--rounds", 3, "--seconds", 20, "--documents"]
    lines = under_load.main([*map(str, argv)])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    assert [(line["clients"], line["round"]) for line in lines] == [
        *((clients, turn) for turn in range(3) for clients in (1, 2)),
        *((clients, "median") for clients in (1, 2)),
    ]
    assert [line["answers"] for line in lines] == [10] * 6 + [30] * 2
    assert 0 < sum(line["wrong"] for line in lines[:6]) < 60 and not any(line["errors"] for line in lines)
    assert lines[-1]["p50_ms"] == sorted(line["p50_ms"] for line in lines[1:6:2])[1]
    names = ["litert", "libretranslate a.argosmodel", "libretranslate b.argosmodel"]
    assert under_load.names_of([str(tmp_path), "a.argosmodel", "b.argosmodel"]) == names
    sentences, words = under_load.documents(["Two doors.", "A, b!"])
    assert sentences.count(".") == 3_400 and len(words) == 32_000 and "." not in words
