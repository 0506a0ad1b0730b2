"""Reads and writes protocol buffers by hand. Their Python classes are in TensorFlow's Python, which `loader` must not
import, and in tensorflow-serving-api, which exporting should not need."""

from collections.abc import Iterator
from typing import Any


def field(number: int, content: bytes) -> bytes:
    """A field with a length: bytes, a string, or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a serialized message: number, and content as int or bytes."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        kind = tag & 7
        if kind == 0:
            number, place = _read_varint(message, place)
            yield tag >> 3, number
        else:
            size, place = _read_varint(message, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            yield tag >> 3, message[place : place + size]
            place += size


def entry(message: bytes) -> tuple[str, bytes]:
    """An entry of a map with string keys."""
    content = dict(fields(message))
    return content.get(1, b"").decode(), content.get(2, b"")


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        number, place, shift = number | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return number, place
