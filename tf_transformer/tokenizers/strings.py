"""Texts as strangers send them: strings or bytes that are perhaps not UTF-8, of any length, with control characters."""

import codecs
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_transformer.utils.files import encoded
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST, Natural, checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

BYTES_OF_A_TOKEN = 64  # at most: SentencePiece's longest piece has 16 characters
CONTROLS = dict.fromkeys(range(32), " ")  # control characters count as white space
SEPARATORS = re.compile(r"[ \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # Unicode's category Z

codecs.register_error("as_space", lambda error: (" ", error.end))  # type: ignore[attr-defined]


def text_tensor(texts: Tensor) -> "tf.Tensor":
    """A string or a list of strings as a tensor, whatever they contain (`encoded`); tensors stay as they are."""
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, str | bytes | list | tuple):
        return texts
    return tf.constant(tf.nest.map_structure(encoded, texts), tf.string)


def utf8(text: str | bytes) -> str:
    """A text in which each part that is not UTF-8 is a space."""
    return encoded(text).decode("utf-8", "as_space")


def valid(text: str | bytes) -> str:
    """A text in which each part that is not UTF-8, and each control character, is a space."""
    text = text if isinstance(text, str) and text.isprintable() else utf8(text)
    return text if text.isprintable() else text.translate(CONTROLS)


def valid_text(texts: Tensor) -> "tf.Tensor":
    """As `valid`, for texts [B]."""
    texts = text_tensor(texts)
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" "), replace_control_characters=True
    )


@checked
def beginnings(texts: Tensor, tokens: Natural) -> "tuple[tf.Tensor, tf.Tensor]":
    """Texts without what cannot be among their first N = `tokens` tokens. Tokenizing 4 MB takes 900 MiB and seconds.

    A text of at most 64 * (N + 1) bytes stays as it is. In a longer one, white space and control characters in a row
    become one space, and what is then behind these bytes is left out. A normalization could make less than N tokens of
    them, if it joins or drops most characters.

    Returns:
        texts [B]; whether something was left out, bool [B].
    """
    texts = text_tensor(texts)
    most = min(BYTES_OF_A_TOKEN * (tokens + 1), MOST)
    is_long = tf.strings.length(texts) > most

    def cut() -> "tuple[tf.Tensor, tf.Tensor]":
        plain = tf.strings.regex_replace(valid_text(texts), r"[\s\p{Z}]+", " ")
        begin = valid_text(tf.strings.substr(plain, 0, most))  # without half a character at its end
        return tf.where(is_long, begin, texts), is_long & (tf.strings.length(plain) > most)

    return tf.cond(tf.reduce_any(is_long), cut, lambda: (texts, is_long))


@checked
def begun(texts: Sequence[str | bytes], tokens: Natural) -> list[tuple[str | bytes, bool]]:
    """As `beginnings`, in Python: of each text its beginning, and whether something was left out."""
    most = min(BYTES_OF_A_TOKEN * (tokens + 1), MOST)
    return [_begun(text, most) for text in texts]


def _begun(text: str | bytes, most: int) -> tuple[str | bytes, bool]:
    if len(text) <= most // 4 or len(encoded(text)) <= most:  # a character has at most 4 bytes
        return text, False
    plain = SEPARATORS.sub(" ", valid(text)).encode()
    return utf8(plain[:most]), len(plain) > most  # without half a character at its end
