"""The benchmark of many clients sends as many requests at once as it claims, and compares every output."""

import json
import threading

import pytest

from benchmarks import under_load

TEXTS = ["one", "two", "three"]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the program with a function in place of an engine: from texts to translations."""
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "text").write_text("\n".join([*TEXTS, "left out"]))

    def run(translate, *options):
        monkeypatch.setattr(under_load, "load", lambda engine, args: translate)
        source = ("--source", str(tmp_path / "text"), "--sentences", str(len(TEXTS)))
        lines = under_load.main([str(tmp_path), *source, *options])
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
        return lines

    return run


def upper(texts):
    return [text.upper() for text in texts]


def test_each_client_waits_for_its_answer(run):
    single, inside, both = iter(TEXTS), set(), threading.Event()

    def translate(texts):
        if next(single, None) is None:  # each text was translated alone before
            inside.add(threading.get_ident())
            if len(inside) == 2:
                both.set()
            assert both.wait(timeout=30)
        return upper(texts)

    (line,) = run(translate, "--clients", "2", "--seconds", "0.02")
    assert line["clients"] == len(inside) == 2 and line["wrong"] == 0 < line["answers"]
    assert line["p50_ms"] <= line["p99_ms"] and line["resident_mib"] <= line["peak_mib"]


def test_batches_hold_what_came_together_and_no_more(run):
    sizes = []

    def translate(texts):
        sizes.append(len(texts))
        return upper(texts)

    lines = run(translate, "--clients", "7", "--seconds", "0.06", "--every", "0.03", "--batch", "5", "--wait", "20")
    assert len(lines) == 2 and not any(line["wrong"] for line in lines)
    assert 1 < max(sizes) <= 5
    assert sum(sizes) == len(TEXTS) + sum(line["answers"] for line in lines)


def test_a_wrong_answer_is_counted_and_an_error_ends_the_program(run):
    single = iter(TEXTS)

    def translate(texts):
        return upper(texts) if next(single, None) else texts

    (line,) = run(translate, "--clients", "1", "--seconds", "0.01")
    assert line["wrong"] == line["answers"] > 0

    def fails(texts):
        if len(texts) > 1:
            raise RuntimeError("no room")
        return upper(texts)

    with pytest.raises(RuntimeError, match="no room"):
        run(fails, "--clients", "7", "--seconds", "0.05", "--batch", "5", "--wait", "20")
    with pytest.raises(SystemExit):
        run(upper, "--clients", "3", "0")
