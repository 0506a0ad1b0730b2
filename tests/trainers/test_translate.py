"""`tf-transformer translate` on one file: every option of Python, three forms of output, and what is left of a stop."""

import json
import os
import resource
import select
import subprocess
import sys

import pytest
from programs import ROOT, fails

import tf_transformer as tt
from trainers import translate

LINES = ["The red door.", "", "Two doors."]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "source"


@pytest.mark.program
def test_it_takes_what_python_takes(saved, source, tmp_path, capsys):
    engine, output = tt.load(saved), tmp_path / "output"
    options = {"beam_size": 2, "length_penalty": 1.5, "min_length": 3, "no_repeat_ngram_size": 2, "max_length": 9}
    argv = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    expected = engine.replies(LINES, 2, **options)
    translate.main([str(saved), str(source), "--output", str(output), *argv, "--json", "--n-best", "2"])
    for line, reply in zip(output.read_text().splitlines(), expected, strict=True):
        found = json.loads(line)
        assert (found["text"], found["truncated"], found["empty"]) == (reply.text, reply.truncated, reply.empty)
        assert [one["text"] for one in found["n_best"]] == [answer.text for answer in reply.hypotheses]
        assert found["score"] == pytest.approx(reply.score, rel=1e-4)
    translate.main([str(saved), str(source), *argv, "--scores"])
    scores, texts = zip(*(line.split("\t") for line in capsys.readouterr().out.splitlines()), strict=True)
    assert list(texts) == [reply.text for reply in expected]
    assert [float(score) for score in scores] == pytest.approx([reply.score for reply in expected], abs=1e-4)


@pytest.mark.program
def test_a_document(saved, tmp_path, capsysbinary):
    page, output = tmp_path / "page.html", tmp_path / "output"
    page.write_bytes("<p>The <b>red</b> door. Two doors {x}.\r\n</p>é".encode())
    expected = tt.load(saved).document(page.read_bytes(), "html", beam_size=2).encode()
    translate.main([str(saved), str(page), "--document", "html", "--beam-size", "2", "--output", str(output)])
    assert output.read_bytes() == expected and b"\r\n</p>" in expected
    translate.main([str(saved), str(page), "--document", "html", "--beam-size", "2"])
    assert capsysbinary.readouterr().out == expected


@pytest.mark.parametrize("option", ["--json", "--scores", "--input=x"])
def test_a_document_is_one_text(option, capsys):
    with pytest.raises(SystemExit):
        translate.main(["nowhere", "--document", option])
    assert "--document: cannot be combined" in capsys.readouterr().err


def test_what_an_export_fixes_is_one_line(saved, source, capsys):
    message = "patience: expected none in a call, since this engine fixes it, got 3"
    assert message in fails(translate, [saved, source, "--patience", "3"], capsys)


@pytest.mark.program
def test_lines_so_far_are_kept(saved, source, tmp_path, monkeypatch, capsys):
    """Whatever ended it. The next attempt that ends removes them."""
    output, partial = tmp_path / "output", tmp_path / "output.partial"

    def stop(engine, texts, n, **options):
        yield from tt.load(saved).replies(LINES[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(translate, "answered", stop)
        with pytest.raises(SystemExit) as stopped:
            translate.main([str(saved), str(source), "--output", str(output)])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == f"\nthe first 2 lines are in {partial}\n\nstopped\n"
    assert partial.read_text().count("\n") == 2 and not output.exists()
    translate.main([str(saved), str(source), "--output", str(output)])
    assert output.read_text().startswith(partial_text := "".join(f"{t}\n" for t in tt.load(saved)(LINES[:2])))
    assert partial_text and not partial.exists()


@pytest.mark.parametrize("size", [0, 7, 8, 9_000])
def test_a_full_disk_keeps_the_lines_that_fit(size, tmp_path, capsys):
    """A limit on the size of files stands for the disk: a copy would not fit either."""
    partial, before = tmp_path / "output.partial", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            translate.write_lines(str(tmp_path / "output"), (f"line {i % 10}\n" for i in range(5_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    count = size // len("line 0\n")
    expected = "".join(f"line {i % 10}\n" for i in range(count))
    assert [path.name for path in tmp_path.iterdir()] == ["output.partial"] * bool(count)
    assert not count or partial.read_text() == expected
    said = f"\nthe first {count:,} lines are in {partial}\n" if count else ""
    assert capsys.readouterr().err == said


@pytest.mark.program
def test_a_pipe_gets_lines_as_they_come(saved):
    """Before the end of what it reads."""
    program = "from trainers.command import run_program; from trainers.translate import main; run_program(main)"
    command = [sys.executable, "-c", program, str(saved), "--batch-size", "2"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=buffered, text=True, **pipes) as process:
        process.stdin.write("Two doors.\nA dog.\n")
        process.stdin.flush()
        has_come, _, _ = select.select([process.stdout], [], [], 100)
        process.stdin.close()
        assert has_come
        assert process.stdout.read().splitlines() == tt.load(saved)(["Two doors.", "A dog."])
