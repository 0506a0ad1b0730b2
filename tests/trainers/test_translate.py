"""`tf-transformer translate` on one file: options, forms of output, and interrupted output."""

import gzip
import json
import os
import resource
import select
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import fails
from test_documents import Words

import tf_transformer as tt
from trainers import translate

LINES = ["The red door.", "", "Two doors."]


@pytest.fixture(scope="module")
def loaded(saved):
    return tt.load(saved)


@pytest.fixture
def engine(loaded, monkeypatch):
    """The export that the program opens. It is loaded once, since this takes seconds."""
    monkeypatch.setattr(tt, "load", lambda path, **options: loaded)
    return loaded


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "source"


@pytest.mark.program
def test_it_takes_the_options_of_a_call(engine, source, tmp_path, capsys):
    output = tmp_path / "output"
    options = {"beam_size": 2, "length_penalty": 1.5, "min_length": 3, "no_repeat_ngram_size": 2, "max_length": 9}
    argv = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    expected = engine.replies(LINES, 2, **options)
    translate.main(["saved", str(source), "--output", str(output), *argv, "--json", "--n-best", "2"])
    for line, reply in zip(output.read_text().splitlines(), expected, strict=True):
        row = json.loads(line)
        assert (row["text"], row["truncated"], row["empty"]) == (reply.text, reply.truncated, reply.empty)
        assert [item["text"] for item in row["n_best"]] == [hypothesis.text for hypothesis in reply.hypotheses]
        assert row["score"] == pytest.approx(reply.score, rel=1e-4)
    translate.main(["saved", str(source), *argv, "--scores"])
    scores, texts = zip(*(line.split("\t") for line in capsys.readouterr().out.splitlines()), strict=True)
    assert list(texts) == [reply.text for reply in expected]
    assert [float(score) for score in scores] == pytest.approx([reply.score for reply in expected], abs=1e-4)


@pytest.mark.program
def test_a_document(engine, tmp_path, capsysbinary):
    page, output = tmp_path / "page.html", tmp_path / "output"
    page.write_bytes("<p>The <b>red</b> door. Two doors {x}.\r\n</p>é".encode())
    expected = tt.documents.translate(engine, page.read_bytes(), "html", beam_size=2).encode()
    translate.main(["saved", str(page), "--document", "html", "--beam-size", "2", "--output", str(output)])
    assert output.read_bytes() == expected and b"\r\n</p>" in expected
    translate.main(["saved", str(page), "--document", "html", "--beam-size", "2"])
    assert capsysbinary.readouterr().out == expected


@pytest.mark.parametrize(
    ("name", "options", "warning"),
    [
        ("a.html", [], "a.html: read as plain text. For its format, pass --document html.\n"),
        ("a.SRT.gz", [], "a.SRT.gz: read as plain text. For its format, pass --document srt.\n"),
        ("a.po", [], "a.po: .po is not supported. It is read as plain text, so check the output.\n"),
        ("a.md", ["html"], "a.md: .md is not supported. It is read as html, so check the output.\n"),
        ("a.html", ["text"], ""),
        ("a.srt", ["srt"], ""),
        ("a.txt", [], ""),
    ],
)
def test_files_of_other_kinds_are_warned_about(name, options, warning, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    monkeypatch.setattr(translate, "engine", lambda *args, **options: Words(str.upper))
    translate.main(["nowhere", name, "--document", *options])
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize("option", ["--json", "--scores", "--input=x"])
def test_a_document_is_one_text(option, capsys):
    assert "--document: cannot be combined" in fails(translate, ["nowhere", "--document", option], capsys)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("a.srt", b"WEBVTT", "line 1: expected a time such as"), ("a.xml", b"<p>", "document: expected well-formed XML")],
)
def test_a_document_of_another_format_is_an_error(name, text, message, tmp_path, capsys):
    (tmp_path / name).write_bytes(text)
    line = fails(translate, ["nowhere", tmp_path / name, "--document", name[2:]], capsys)
    assert f"{tmp_path / name}: {message}" in line


def test_one_file_is_not_compressed(capsys):
    line = fails(translate, ["nowhere", "text.en", "--output", "text.de.gz"], capsys)
    assert line.endswith("expected a name without .gz, since one file is not compressed, got text.de.gz")


@pytest.mark.program
def test_lines_before_an_interrupt_are_kept(engine, source, tmp_path, monkeypatch, capsys):
    """The next complete translation removes them."""
    output, partial = tmp_path / "output", tmp_path / "output.partial"

    def stop(engine, texts, n, **options):
        yield from engine.replies(LINES[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(translate, "answered", stop)
        with pytest.raises(SystemExit) as stopped:
            translate.main(["saved", str(source), "--output", str(output)])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == f"\nthe first 2 lines are in {partial}\n\nstopped\n"
    assert partial.read_text().count("\n") == 2 and not output.exists()
    translate.main(["saved", str(source), "--output", str(output)])
    assert output.read_text() == "".join(f"{text}\n" for text in engine(LINES)) and not partial.exists()


@pytest.mark.parametrize("size", [0, 7, 8, 9_000])
def test_a_full_disk_keeps_the_lines_that_fit(size, tmp_path, capsys):
    """A limit on the size of files simulates the disk. A copy would not fit either."""
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
    message = f"\nthe first {count:,} lines are in {partial}\n" if count else ""
    assert capsys.readouterr().err == message


@pytest.mark.program
def test_a_pipe_gets_each_batch_at_once(engine, monkeypatch):
    """It does not wait for the end of its input."""
    monkeypatch.setattr(engine, "batch_size", 2)
    (stdin, sender), (receiver, stdout) = os.pipe(), os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(stdin))
    monkeypatch.setattr("sys.stdout", os.fdopen(stdout, "w"))
    with ThreadPoolExecutor(1) as pool, os.fdopen(receiver) as outputs:
        program = pool.submit(translate.main, ["saved"])
        os.write(sender, b"Two doors.\nA dog.\n")
        ready, _, _ = select.select([receiver], [], [], 100)
        os.close(sender)
        program.result()
        sys.stdout.close()
        assert ready and outputs.read().splitlines() == engine(["Two doors.", "A dog."])
