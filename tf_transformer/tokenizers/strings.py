"""Untrusted texts: strings or bytes that may not be UTF-8, of any length, with control characters."""

import codecs
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_transformer.utils.files import encoded
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST, BadInput

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

BYTES_OF_A_TOKEN = 64  # maximum: SentencePiece's longest piece has 16 characters
CONTROLS = dict.fromkeys(range(32), " ")  # control characters count as whitespace
SEPARATORS = re.compile(r"[ \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # Unicode's category Z

# No whitespace and no control characters, Unicode's categories Z and Cc
SPACE_IN_GRAPH = r"[\p{Z}\p{Cc}]"  # the others, for TensorFlow's regular expressions
WORD = re.compile(r"[^\0-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

codecs.register_error("as_space", lambda error: (" ", error.end))  # type: ignore[attr-defined]


def text_tensor(texts: Tensor) -> "tf.Tensor":
    """Returns a string or a list of strings, whatever they contain, as a tensor. Tensors are unchanged."""
    if type(texts).__name__ == "KerasTensor":  # This module does not import Keras.
        raise BadInput("texts: expected values, got a symbolic tensor. Put texts in front of a model with tt.TextModel")
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, str | bytes | list | tuple):
        return texts
    return tf.constant(tf.nest.map_structure(encoded, texts), tf.string)


def utf8(text: str | bytes) -> str:
    """Returns a text in which each invalid part of UTF-8 is a space."""
    return encoded(text).decode("utf-8", "as_space")


def utf8_in_graph(texts: Tensor) -> "tf.Tensor":
    """Applies `utf8` to texts [B] in a graph."""
    return tf.strings.unicode_transcode(
        text_tensor(texts), "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" ")
    )


def split_words(text: str | bytes) -> list[str]:
    """Returns a text's words between whitespace and control characters, as it spells them."""
    return WORD.findall(utf8(text))


def split_words_in_graph(texts: Tensor) -> "tf.RaggedTensor":
    """Applies `split_words` to texts [B] in a graph."""
    return tf.strings.split(tf.strings.regex_replace(valid_text(texts), f"{SPACE_IN_GRAPH}+", " "))


def valid(text: str | bytes) -> str:
    """Returns a text in which each invalid part of UTF-8, and each control character, is a space."""
    # Most texts are printable, which Python checks faster than it encodes and decodes them.
    text = text if isinstance(text, str) and text.isprintable() else utf8(text)
    return text if text.isprintable() else text.translate(CONTROLS)


def valid_text(texts: Tensor) -> "tf.Tensor":
    """Applies `valid` to texts [B] in a graph."""
    texts = text_tensor(texts)
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" "), replace_control_characters=True
    )


def truncate_in_graph(texts: Tensor, tokens: int) -> "tuple[tf.Tensor, tf.Tensor]":
    """Truncates huge texts, so that at least N = `tokens` tokens remain.

    Tokenizing 4 MB takes seconds and 900 MiB. So in a text of more than 64 * (N + 1) bytes, each run of whitespace and
    control characters becomes one space, and then the bytes after these are dropped. Only a normalization that joins or
    drops most characters could yield fewer than N tokens. Also returns whether each text was cut, bool [B].
    """
    texts = text_tensor(texts)
    most = min(BYTES_OF_A_TOKEN * (tokens + 1), MOST)
    is_long = tf.strings.length(texts) > most

    def cut() -> "tuple[tf.Tensor, tf.Tensor]":
        plain = tf.strings.regex_replace(valid_text(texts), r"[\s\p{Z}]+", " ")
        # Half a character at the end becomes a space.
        begin = valid_text(tf.strings.substr(plain, 0, most))
        return tf.where(is_long, begin, texts), is_long & (tf.strings.length(plain) > most)

    return tf.cond(tf.reduce_any(is_long), cut, lambda: (texts, is_long))


def truncate_texts(texts: Sequence[str | bytes], tokens: int) -> list[tuple[str | bytes, bool]]:
    """Returns each text as `truncate_in_graph` truncates it, and whether something was dropped, without TensorFlow."""
    most = min(BYTES_OF_A_TOKEN * (tokens + 1), MOST)
    truncated = list[tuple[str | bytes, bool]]()
    for text in texts:
        # A character has at most 4 bytes, so short texts need no encoding.
        if len(text) <= most // 4 or len(encoded(text)) <= most:
            truncated.append((text, False))
        else:
            plain = SEPARATORS.sub(" ", valid(text)).encode()
            truncated.append((utf8(plain[:most]), len(plain) > most))
    return truncated


def check_tensorflow_text() -> None:
    """Imports tensorflow-text, whose operations this package's SavedModels need, or raises `BadInput`."""
    try:
        with quiet_import():
            import tensorflow_text  # noqa: F401
    except (ImportError, tf.errors.NotFoundError) as error:
        reason, version = str(error).splitlines()[0], tf.__version__
        minor = ".".join(version.split(".")[:2])
        message = f"text: expected tensorflow-text {minor}, that of TensorFlow {version}: {reason}"
        raise BadInput(message) from error
