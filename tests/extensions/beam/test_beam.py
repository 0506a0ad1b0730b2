"""Bulk translation on Apache Beam, against the same SavedModel called in other ways."""

import contextlib
import dataclasses
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import hostile
import numpy as np
import pages
import pytest
import tensorflow as tf
import test_parsing
import test_values
from conftest import TEXTS
from programs import ROOT, fails

import tf_transformer as tt

beam = pytest.importorskip("apache_beam")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: E402

from tf_transformer.decoding.search_options import LANGUAGES, SEARCH_OPTIONS, options_of  # noqa: E402
from tf_transformer.extensions.beam import shards, translation  # noqa: E402
from tf_transformer.extensions.beam.translation import Model  # noqa: E402
from trainers import pipelines, translate  # noqa: E402

REQUEST = [*options_of("request")]
LINES = [line.encode() if isinstance(line, str) else line for line in [*TEXTS, "The old woman opens the red door."]]


@pytest.fixture(scope="module")
def plain(saved):
    """The engine of `saved`."""
    return tt.load(saved)


@pytest.fixture(scope="module")
def model(saved, plain):
    """Beam's model of `saved`, without loading it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", lambda path: plain.loaded)
        return Model(tt.beam.TranslationSettings(str(saved)))


@pytest.fixture
def loaded(model, monkeypatch):
    """Workers take it instead of loading it."""
    monkeypatch.setattr(translation.Handler, "load_model", lambda self: model)
    monkeypatch.setattr(shards, "Model", lambda method: model)


COLLECTED = []


def collect(element):
    COLLECTED.append(element)


def run(elements, transform):
    """Returns the outputs of a transform and the metrics, in this process."""
    COLLECTED.clear()
    pipeline = beam.Pipeline(FnApiRunner(), PipelineOptions([]))
    _ = pipeline | beam.Create(elements) | transform | beam.Map(collect)
    metrics = pipeline.run().metrics().query()
    counted = {each.key.metric.name: each.committed for each in metrics["counters"] + metrics["distributions"]}
    return list(COLLECTED), counted


class Row(NamedTuple):
    number: int
    text: bytes


@pytest.mark.program
def test_a_key_and_a_text(model, plain, saved, loaded, monkeypatch):
    """Each key keeps its text, over several chunks, and the metrics count what went by."""
    monkeypatch.setattr(translation, "CHUNK", 7)
    texts = [f"{text} {i}" for i in range(3) for text in ("Two doors.", "The dog sleeps.", "The red door")] + TEXTS
    outputs, metrics = run(list(enumerate(texts)), tt.beam.Translate(saved))
    assert {i: output.source for i, output in outputs} == dict(enumerate(texts))
    with pytest.warns(UserWarning, match="more tokens"):
        assert [output.text for _, output in sorted(outputs)] == plain(texts)
    lengths = np.array([reply.length for reply in plain.replies(texts)])
    counters = {name: metrics[name] for name in ("sentences", "tokens", "truncated", "empty")}
    assert counters == {"sentences": len(texts), "tokens": lengths.sum(), "truncated": 1, "empty": 3}
    assert metrics["batch_milliseconds"].count >= 3


@pytest.mark.program
def test_a_field_of_an_element(loaded, saved):
    rows = [Row(3, b"Two doors."), {"number": 5, "text": "Two doors."}]
    outputs, _ = run(rows, tt.beam.Translate(saved, text="text"))
    assert [element for element, _ in outputs] in (rows, rows[::-1])
    assert len({output.text for _, output in outputs}) == 1


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (translation.TranslationSettings, {"path": "a"}),
        (shards.BulkJob, {"inputs": ("a",), "prefix": "b", "method": translation.TranslationSettings("c")}),
    ],
)
def test_every_setting_is_checked(kind, arguments):
    for field in dataclasses.fields(kind):
        for value in test_values.HOSTILE:
            outcome = test_values.outcome(field.name, lambda a=arguments | {field.name: value}: kind(**a))
            if outcome and test_values.is_option(field.type):
                assert test_values.is_plain(getattr(outcome[0], field.name)), (field.name, value)
    for name in SEARCH_OPTIONS:
        for value in test_values.HOSTILE if name in REQUEST else ():
            for made in test_values.outcome(
                name, lambda o={name: value}: translation.TranslationSettings("a", options=o)
            ):
                assert test_values.is_plain(made.options[name])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"options": {"beam_size": 17}}, "beam_size: expected 1 to 16, got 17"),
        ({"options": {"patience": 1}}, f"options: expected {', '.join([*REQUEST, *LANGUAGES])}; got patience"),
        ({"options": {"target_language": 7}}, "target_language: expected text, got 7"),
        ({"threads": -1}, "threads: expected a whole number from 1 to 1,024 or None, got -1"),
    ],
)
def test_bad_methods(method, message):
    with pytest.raises(tt.BadInput, match=re.escape(message)):
        tt.beam.Translate("a/1", **method)


@pytest.mark.program
def test_what_an_export_cannot_do(saved, tmp_path):
    with pytest.raises(tt.BadInput, match=r"1: n_best: expected 1 to 4, got 5"):
        Model(tt.beam.TranslationSettings(str(saved), n_best=5))
    with pytest.raises(tt.BadInput, match="expected a SavedModel, .* or a checkpoint, found no"):
        Model(tt.beam.TranslationSettings(str(tmp_path)))


@pytest.mark.parametrize(("element", "field"), [(7, None), (("a", "b", "c"), None), ({"texts": "a"}, "text")])
def test_bad_elements(saved, loaded, element, field):
    with pytest.raises(tt.BadInput, match="elements: expected a string.*, got "):
        run([element], tt.beam.Translate(saved, text=field))


def write(folder, name, lines):
    text = b"".join(line + b"\n" for line in lines)
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return str(folder / name)


def read(prefix):
    """Returns the lines of all shards in order."""
    paths = sorted(Path(prefix).parent.glob(f"{Path(prefix).name}-*-of-*"))
    assert not [path for path in paths if path.suffix == ".tmp"]
    texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    assert all(text.endswith(b"\n") for text in texts)
    return [line.decode() for text in texts for line in text[:-1].split(b"\n")]


@pytest.fixture(scope="module")
def strange():
    """Hostile and very long lines. The first one is text, since a file that begins with binary data is refused."""
    r = random.Random(5)
    lines = [maker(r) for maker in hostile.KINDS[:-1] for _ in range(9)]
    return [line.replace(b"\n", b" ") for line in [b"word " * 30_000, *lines, b"\xff" * 999, b"", b"\r", b"\0"]]


def test_files(tmp_path, saved, plain, loaded, strange, capsys):
    """Writes one line per line in order, whatever it contains. Resuming keeps finished shards."""
    write(tmp_path, "b.en", strange)
    write(tmp_path, "a.en.gz", LINES)
    (tmp_path / "empty.en").write_bytes(b"")
    argv = [str(saved), "--input", str(tmp_path / "*.en*"), "--output", str(tmp_path / "out/part"), "--lines", "13"]
    translate.main(argv)
    with pytest.warns(UserWarning, match="more tokens"):
        expected = plain([*LINES, *strange])
    expected = [text.replace("\n", " ") for text in expected]
    assert read(tmp_path / "out/part") == expected
    assert sorted(path.name for path in (tmp_path / "out/part.work").iterdir()) == ["lock", "settings.json"]
    assert re.fullmatch(rf"7 files, {len(expected)} lines in \d+ s, \d+ a second\n", capsys.readouterr().out)

    paths = sorted((tmp_path / "out").glob("part-*"))
    assert [path.name for path in paths[::6]] == ["part-00000-of-00007.txt", "part-00006-of-00007.txt"]
    before = {path: path.stat().st_ino for path in paths}
    paths[3].rename(paths[3].with_name(f".{paths[3].name}-0a1b2c3d.tmp"))  # like a killed worker
    translate.main([*argv, "--workers", "1", "--batch-bytes", "77"])
    assert read(tmp_path / "out/part") == expected
    assert [path for path in paths if path.stat().st_ino != before[path]] in ([], [paths[3]])
    assert "1 files, 13 lines in " in capsys.readouterr().out
    translate.main(argv)
    assert capsys.readouterr().out.startswith("0 files, 0 lines in 0 s, 0 a second; 7 were there")


@pytest.mark.program
def test_json_and_gzip(tmp_path, saved, plain):
    argv = [str(saved), "--input", write(tmp_path, "a", LINES), "--output", str(tmp_path / "part"), "--lines", "7"]
    translate.main([*argv, "--json", "--gzip", "--n-best", "2", "--beam-size", "2"])
    rows = [json.loads(line) for line in read(tmp_path / "part")]
    expected = plain.replies(LINES, 2, beam_size=2)
    for row, reply in zip(rows, expected, strict=True):
        assert row.keys() == {"text", "score", "truncated", "empty", "n_best"}
        assert row["score"] == pytest.approx(reply.score, rel=1e-4, abs=1e-5)
        assert [best["text"] for best in row["n_best"]] == [best.text for best in reply.hypotheses]
        assert (row["text"], row["truncated"], row["empty"]) == (reply.line, reply.truncated, reply.empty)


@pytest.mark.program
def test_output_of_another_work_is_rejected(tmp_path, saved, loaded, capsys):
    source = write(tmp_path, "a", LINES)
    argv = [str(saved), "--input", source, "--output", str(tmp_path / "part"), "--lines", "7"]
    translate.main(argv)
    moved = write(tmp_path, "moved", LINES)
    translate.main([str(saved), "--input", moved, *argv[3:]])  # the same lines
    before = read(tmp_path / "part")

    other = write(tmp_path, "b", LINES[1:])
    assert "part: it has output of other inputs: " in fails(
        translate, [str(saved), "--input", other, *argv[3:]], capsys
    )
    changed = tmp_path / "model/1"
    (changed / "variables").mkdir(parents=True)
    (changed / "saved_model.pb").write_bytes(b"another")
    assert "part: it has output of another model: " in fails(translate, [str(changed), *argv[1:]], capsys)
    for more in (["--json"], ["--beam-size", "2"], ["--lines", "5"]):
        assert "part: it has output of other settings: " in fails(translate, [*argv, *more], capsys)
    argv[4] = str(tmp_path / "other")
    (tmp_path / "other-00000-of-00001.txt").touch()
    assert "other: expected no output of another work, found " in fails(translate, argv, capsys)
    assert read(tmp_path / "part") == before


def test_wrong_files_and_options(tmp_path, saved, capsys):
    source, packed = write(tmp_path, "a", LINES), tmp_path / "b.gz"
    packed.write_bytes(gzip.compress(b"".join(LINES))[:-9])

    def failure(*argv):
        return fails(translate, [saved, *argv, "--output", tmp_path / "part"], capsys)

    assert failure("--input", tmp_path / "none*") == f"error: expected text files, found none at {tmp_path / 'none*'}"
    assert f"expected text files, got the directory {tmp_path}" in failure("--input", tmp_path)
    assert "b.gz: expected a whole gzip file, got a damaged one" in failure("--input", packed)
    assert "--workers: expected a positive number, got 0" in failure("--input", source, "--workers", 0)
    assert "--workers: expected none with --runner" in failure("--input", source, "--workers", 2, "--runner", "A")
    no_runner = [saved, "--input", source, "--output", tmp_path / "new", "--runner", "A"]
    assert "--runner: expected one of Beam's, with its options; Unexpected" in fails(translate, no_runner, capsys)
    assert not list(tmp_path.glob("new*"))
    assert "--: expected --runner before Beam's options" in fails(
        translate, [saved, "--input", source, "--output", tmp_path / "part", "--", "--a"], capsys
    )
    assert "--n-best: expected --json" in failure("--input", source, "--n-best", 2)
    assert "--gzip: expected --input" in failure("--gzip")
    assert "--patience: cannot be combined with --input" in failure("--input", source, "--patience", 2)
    assert "--scores: cannot be combined with --json" in failure("--json", "--scores")
    assert "expected --output PREFIX as well, and no other file" in fails(translate, [saved, "--input", source], capsys)
    assert not list(tmp_path.glob("part-*"))

    work = tt.beam.BulkJob((source,), str(tmp_path / "mine"), tt.beam.TranslationSettings(str(saved)))
    with work.opened() as found:
        assert len(found) == 1
        argv = [saved, "--input", source, "--output", tmp_path / "mine"]
        assert "mine: expected output that nothing else writes" in fails(translate, argv, capsys)


@pytest.mark.program
def test_a_full_disk_raises_one_line(tmp_path, saved, loaded, capsys, monkeypatch):
    monkeypatch.setattr(shards, "new_file", lambda path: contextlib.nullcontext("/dev/full"))
    argv = [saved, "--input", write(tmp_path, "a", LINES), "--output", tmp_path / "part"]
    line = f"error: [Errno 28] No space left on device: '{tmp_path}/part-00000-of-00001.txt'"
    assert fails(translate, argv, capsys) == line


def test_options_of_beam(monkeypatch):
    assert pipelines.split_options(["a", "--b"]) == (["a", "--b"], [])
    assert pipelines.split_options(["a", "--", "--b", "--"]) == (["a"], ["--b", "--"])
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert [pipelines.threads_of_a_worker(workers) for workers in (None, 1, 2, 11)] == [None, None, 3, 1]


tree_parser = test_parsing.parser  # a fixture


@pytest.mark.slow
def test_a_parser_is_rejected(tmp_path, tree_parser):
    tree_parser.save(tmp_path / "parser/1")
    with pytest.raises(tt.BadInput, match="parser/1: expected a translator's export, got one of another task"):
        Model(tt.beam.TranslationSettings(str(tmp_path / "parser/1")))


def workers_of(pid):
    """Returns the worker processes of a program."""
    of = ["pgrep", "-P", str(pid), "-f", "spawn_main"]
    return [int(pid) for pid in subprocess.run(of, capture_output=True, text=True).stdout.split()]


def running(pid):
    """Returns whether a process runs and is not a zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")


KILLED = "error: a worker process was killed by signal 9; start again to resume\n"
STOPPED = "\nstopped; start it again with the same options to resume\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "target", "status", "message"),
    [
        (signal.SIGKILL, "a worker", 3, KILLED),
        (signal.SIGINT, "all", 130, STOPPED),  # Ctrl-C
        (signal.SIGTERM, "the program", 143, ""),
        (signal.SIGKILL, "the program", -9, ""),
    ],
)
def test_a_killed_worker_or_program(tmp_path, saved, number, target, status, message):
    """It ends at once with one line, and so do its workers. Started again it only writes the missing files."""
    source = write(tmp_path, "a", [b"The old woman opens the red door %d." % i for i in range(3_001)])
    argv = [sys.executable, "-m", "trainers.translate", str(saved), "--input", source]
    argv += ["--output", str(tmp_path / "part"), "--lines", "97", "--workers", "2"]

    def done():
        return {path: path.stat().st_ino for path in tmp_path.glob("part-*-of-*.txt")}

    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not done():
            time.sleep(0.1)
            assert process.poll() is None
        workers = workers_of(process.pid)
        assert len(workers) == 2
        for pid in {"a worker": workers[1:], "all": [process.pid, *workers], "the program": [process.pid]}[target]:
            os.kill(pid, number)
        assert process.wait(20) == status
        errors = process.stderr.read()
        assert errors.endswith(message) and "Traceback" not in errors
    finally:
        process.kill()
    for _ in range(100):
        if not any(running(pid) for pid in workers):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker outlives its program")
    before = done()
    assert 0 < len(before) < 31 and not list(tmp_path.glob(".*"))
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    assert len(done()) == 31
    assert before.items() <= done().items()
    assert read(tmp_path / "part") == tt.load(saved)(Path(source).read_text().splitlines())


@pytest.mark.program
def test_the_guides_python(tmp_path, saved, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "savedmodels/demo").mkdir(parents=True)
    (tmp_path / "savedmodels/demo/1").symlink_to(saved)
    rows = [{"id": i, "text": text} for i, text in enumerate(["Two doors.", "", "The dog sleeps."])]
    (tmp_path / "rows-1.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pages.run_blocks("docs/guides/beam.md")
    lines = "".join(path.read_text() for path in tmp_path.glob("translated-*-of-*.jsonl")).splitlines()
    translated = {row["id"]: row for row in map(json.loads, lines)}
    expected = tt.load(saved)([row["text"] for row in rows], beam_size=2)
    assert [translated[i]["translation"] for i in range(3)] == expected
