"""Lines of text files: every reader yields the same ones, and a bad one is named."""

import codecs
import contextlib
import gzip
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.config import BadInput
from tf_transformer.data.sources import TextSource
from tf_transformer.utils import lines as text_lines
from tf_transformer.utils.lines import LineRange, line_ranges, lines_of, read_range, unpacked

BOM = codecs.BOM_UTF8
# Characters that end a line elsewhere, and lines longer than a block.
PARTS = [b"\n", b"\r\n", b"a", b"\r", b"\x0b", b"\xe2\x80\xa8", b"\xff", BOM, b"word " * 9]
TEXT = st.lists(st.sampled_from(PARTS)).map(b"".join)


def expected_lines(text):
    lines = [line.removesuffix(b"\r") for line in text.split(b"\n")]
    lines = lines if text.rpartition(b"\n")[2] else lines[:-1]
    return [line if number else line.removeprefix(BOM) for number, line in enumerate(lines)]


@given(st.lists(TEXT, max_size=4), st.integers(1, 7), st.integers(1, 13))
def test_files_and_ranges_have_the_same_lines(tmp_path_factory, texts, lines, block):
    folder = tmp_path_factory.mktemp("ranges")
    paths = [folder / f"{i}.txt" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "_BLOCK", block)
        ranges = line_ranges(paths, lines)
    assert [each.path for each in ranges] == sorted(each.path for each in ranges)
    for path, text in zip(paths, texts, strict=True):
        of_path, expected = [each for each in ranges if each.path == str(path)], expected_lines(text)
        assert list(lines_of(path)) == [line for each in of_path for line in read_range(each)] == expected
        assert [each.first for each in of_path] == list(range(0, len(expected), lines))
        assert [each.count for each in of_path[:-1]] == [lines] * (len(of_path) - 1)


def test_a_range_of_a_file_that_became_shorter(tmp_path):
    (tmp_path / "text").write_bytes(b"one\n\nthree\r\nfour")
    path = str(tmp_path / "text")
    assert line_ranges([path], 3) == [LineRange(path, 0, 0, 3), LineRange(path, 12, 3, 1)]
    assert read_range(LineRange(path, 4, 1, 2)) == [b"", b"three"]
    with pytest.raises(BadInput, match="text: expected 5 lines, got 4"):
        read_range(LineRange(path, 4, 1, 4))


def test_lines_of_pairs(tmp_path):
    (tmp_path / "source").write_bytes(BOM + b"red\rdoor\r\nTwo\x0cdoors\xc2\x85now\xe2\x80\xa8.")
    (tmp_path / "target").write_bytes(b"rote\rdoor\nZwei\n")
    files = tmp_path / "source", tmp_path / "target"
    expected = ["red\rdoor", "Two\x0cdoors\x85now\u2028."], ["rote\rdoor", "Zwei"]
    source = TextSource(*files)
    assert tt.data.read_text_pairs(*files) == source.texts() == expected
    pairs = [pair for part in source.parts(1, tmp_path) for pair in source.read(part)]
    assert pairs == list(source.pairs()) == [tuple(map(str.encode, pair)) for pair in zip(*expected, strict=True)]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\n", r"the same number of lines in both files, got 2 in .*source and 1 in .*target"),
        (b"one\n\nthree\n", b"eins\nzwei\ndrei\n", r"source, line 2: .*got an empty line"),
        (b"one\n \t\xe3\x80\x80\n", b"eins\nzwei\n", r"source, line 2: .*got an empty line"),
        (b"one\ntwo\n", b"eins\nzw\xffei\n", r"target, line 2: .*UTF-8, got the byte 0xff at column 3"),
        (b"one\n" + b"x" * 100_000 + b"\n", b"eins\nzwei\n", r"source, line 2: .*got 100,000 bytes \(at most 16,384\)"),
        (b"", b"", "expected sentences, got an empty file"),
    ],
)
def test_text_that_cannot_be_trained_on(tmp_path, source, target, message):
    (tmp_path / "source").write_bytes(source)
    (tmp_path / "target").write_bytes(target)
    for read in (tt.data.check_text_pairs, tt.data.read_text_pairs):
        with pytest.raises(BadInput, match=message):
            read(tmp_path / "source", tmp_path / "target")


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("one\ntwo\n")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("eins\nzwei\n"), daemon=True)
    writer.start()
    assert tt.data.read_text_pairs(tmp_path / "file", tmp_path / "pipe") == (["one", "two"], ["eins", "zwei"])
    writer.join(10)
    with pytest.raises(BadInput, match="pipe: expected a file, which can be read again, got a pipe"):
        tt.data.check_text_pairs(tmp_path / "file", tmp_path / "pipe")


def test_unpacked(tmp_path):
    plain, packed, other = tmp_path / "text", tmp_path / "text.gz", tmp_path / "more" / "text.gz"
    other.parent.mkdir()
    for path, content in ((plain, b"plain\n"), (packed, gzip.compress(b"packed\n")), (other, gzip.compress(b"other"))):
        path.write_bytes(content)
    assert unpacked(plain, tmp_path / "to") == plain
    first, second = unpacked(packed, tmp_path / "to"), unpacked(other, tmp_path / "to")
    assert (first.read_bytes(), second.read_bytes()) == (b"packed\n", b"other")

    inode = first.stat().st_ino
    assert unpacked(packed, tmp_path / "to").stat().st_ino == inode
    packed.write_bytes(gzip.compress(b"packed again\n"))
    os.utime(packed, (1, 1))  # older than what was unpacked
    assert unpacked(packed, tmp_path / "to").read_bytes() == b"packed again\n"


def test_a_damaged_gz_and_a_full_disk_leave_nothing(tmp_path, monkeypatch):
    (tmp_path / "text.gz").write_bytes(gzip.compress(os.urandom(1_000).hex().encode())[:-100])
    with pytest.raises(BadInput, match=r"text\.gz: expected a whole gzip file, got a damaged one: "):
        unpacked(tmp_path / "text.gz", tmp_path / "to")
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a"))
    monkeypatch.setattr(text_lines, "new_file", lambda path: contextlib.nullcontext(Path("/dev/full")))
    with pytest.raises(OSError, match=r"No space left on device: '.*/to/text-\w{12}'"):
        unpacked(tmp_path / "text.gz", tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())
