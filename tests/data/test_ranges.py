"""Ranges of lines against Python's own reading of a binary file."""

import contextlib
import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.config import BadInput
from tf_transformer.data import ranges
from tf_transformer.data.ranges import LineRange, line_ranges, read_range, unpacked


def lines_of(path):
    with open(path, "rb") as file:
        return [line[:-1] if line[-1:] == b"\n" else line for line in file]


# Other characters that end a line elsewhere, and lines longer than a block.
TEXT = st.lists(st.sampled_from([b"\n", b"a", b"\r", b"\x0b", b"\xe2\x80\xa8", b"\xff", b"word " * 9])).map(b"".join)


@given(st.lists(TEXT, max_size=4), st.integers(1, 7), st.integers(1, 13))
def test_ranges_are_the_lines_in_order(tmp_path_factory, texts, lines, block):
    folder = tmp_path_factory.mktemp("ranges")
    paths = [folder / f"{i}.txt" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_BLOCK", block)
        found = line_ranges(paths, lines)
    for path in paths:
        of_path = [each for each in found if each.path == str(path)]
        expected = lines_of(path)
        assert [line for each in of_path for line in read_range(each)] == expected
        assert [each.first for each in of_path] == list(range(0, len(expected), lines))
        assert [each.count for each in of_path[:-1]] == [lines] * (len(of_path) - 1)
    assert [each.path for each in found] == sorted(each.path for each in found)


def test_a_range_says_where_it_begins(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\nthree\r\nfour")
    assert line_ranges([path], 3) == [LineRange(str(path), 0, 0, 3), LineRange(str(path), 12, 3, 1)]
    assert read_range(LineRange(str(path), 4, 1, 2)) == [b"", b"three\r"]


def test_bad_ranges(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\nb\n")
    with pytest.raises(BadInput, match="lines: expected a whole number from 1 to .*, got 0"):
        line_ranges([path], 0)
    with pytest.raises(BadInput, match="text: expected 5 lines, got 2"):
        read_range(LineRange(str(path), 2, 1, 4))
    with pytest.raises(FileNotFoundError):
        line_ranges([tmp_path / "none"], 2)


def test_unpacked(tmp_path):
    plain, packed, other = tmp_path / "text", tmp_path / "text.gz", tmp_path / "more" / "text.gz"
    other.parent.mkdir()
    plain.write_bytes(b"plain\n")
    packed.write_bytes(gzip.compress(b"packed\n"))
    other.write_bytes(gzip.compress(b"other\n"))
    assert unpacked(plain, tmp_path / "to") == plain
    first, second = unpacked(packed, tmp_path / "to"), unpacked(other, tmp_path / "to")
    assert (first.read_bytes(), second.read_bytes()) == (b"packed\n", b"other\n")

    kept = first.stat().st_ino
    assert unpacked(packed, tmp_path / "to").stat().st_ino == kept
    packed.write_bytes(gzip.compress(b"packed again\n"))
    os.utime(packed, (1, 1))  # older than what was unpacked
    assert unpacked(packed, tmp_path / "to").read_bytes() == b"packed again\n"


@pytest.mark.parametrize("damage", ["cut", "changed", "none"])
def test_a_damaged_gz(tmp_path, damage):
    whole = gzip.compress(os.urandom(1_000))
    changed = whole[:-8] + bytes(8)
    (tmp_path / "text.gz").write_bytes({"cut": whole[:-100], "changed": changed, "none": b"plain text"}[damage])
    with pytest.raises(BadInput, match=r"text\.gz: expected a whole gzip file, got a damaged one: "):
        unpacked(tmp_path / "text.gz", tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a"))
    monkeypatch.setattr(ranges, "new_file", lambda path: contextlib.nullcontext("/dev/full"))
    with pytest.raises(OSError, match=r"No space left on device: '.*/to/text-\w{12}'"):
        unpacked(tmp_path / "text.gz", tmp_path / "to")
