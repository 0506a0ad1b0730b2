"""A Keras model behind a tokenizer: text in, and out come its outputs, a label, or labelled words."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import tree

from tf_transformer.decoding.primitives import require_tensorflow
from tf_transformer.decoding.tensor_translator import padded
from tf_transformer.inference.engine import strings_in
from tf_transformer.layers import PositionalEmbedding
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.strings import split_words, split_words_in_graph, truncate_in_graph, truncate_texts
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID, Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Count, checked

tf = lazily("tensorflow", "a SavedModel")


class Label(NamedTuple):
    """Class of a text.

    Attributes:
        label: Name of the class with the highest score.
        score: The model's output for this class.
        scores: The model's outputs for all classes, float32 `(N,)`.
    """

    label: str
    score: float
    scores: np.ndarray


class WordLabel(NamedTuple):
    """A word of a text and its label."""

    word: str
    label: str


class EncodedText(NamedTuple):
    """Token ids of a text, EOS included.

    Attributes:
        ids: Token ids. An empty text has EOS, so that no row is padding only.
        words: Words that fit into `ids`. Empty unless words are labelled.
        first_tokens: Index in `ids` of each word's first token.
        truncated: Whether tokens were dropped.
    """

    ids: list[int]
    words: list[str]
    first_tokens: list[int]
    truncated: bool


class Served(ABC):
    """Base class of models that take texts, in Python and as a SavedModel."""

    model: Any
    tokenizer: Tokenizer

    @abstractmethod
    def signatures(self) -> dict[str, Callable[[Tensor], Any]]:
        """Returns functions of texts `(B,)` by the names of their signatures."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Returns entries of `model_info`."""

    def save(self, path: str | os.PathLike[str], checked: bool = False, **metadata: Any) -> None:
        """Writes a SavedModel that takes texts, for TensorFlow Serving.

        Each signature takes `text`, string `(B,)`. `tokenize` returns the tokens, and `model_info` the metadata.

        Args:
            path: New directory `<name>/<integer version>`.
            checked: Whether to run the checks of `tf-transformer check`.
            metadata: Additional entries of `model_info`, such as `license="MIT"`.

        Raises:
            BadInput: If the backend isn't TensorFlow, a weight is not finite, or a check fails.
            FileExistsError: If `path` exists.
        """
        from tf_transformer.serving.contract import Root, Signature
        from tf_transformer.serving.saving import save_export

        require_tensorflow("a SavedModel")
        functions = {**self.signatures(), "tokenize": self._tokens}
        signatures = [Signature(name, function) for name, function in functions.items()]
        metadata = self.metadata() | metadata
        save_export(Root(self.model, self.tokenizer, signatures, {"serving_default": {}}, **metadata), path, checked)

    def _tokens(self, text: Tensor) -> dict[str, Any]:
        ids = self.tokenizer.tokenize(tf.ensure_shape(text, [None]))
        tokens = tf.strings.reduce_join(self.tokenizer.source_pieces(ids), axis=-1, separator=" ")
        return {"tokens": tokens, "length": tf.cast(ids.row_lengths(), tf.int32)}


class TextModel(Served):
    """A Keras model that takes texts, in Python and as a SavedModel.

    A text becomes its token ids and EOS, padded with 0. The model must hide padding, as the mask of
    `tt.layers.PositionalEmbedding` does, or an output depends on the other texts of its batch.

    The SavedModel's `serving_default` returns `truncated` and the model's outputs. With `labels`, the outputs are
    `label`, `score` and `scores`. With `by_word`, they are `words` and `labels`, joined by spaces.

    Args:
        model: Built Keras model with one input, int32 ids `(B, T)`.
        tokenizer: Tokenizer that the model was trained with. `encode` returns what to train on.
        max_length: Maximum number of tokens per text, EOS included. Longer texts are truncated. The model's learned
            positions can lower it.
        labels: Class names along the last axis of the model's output. If `None`, calls return the model's outputs.
        by_word: Whether the model labels tokens, with output `(B, T, N)`. Each word gets the label of its first token.

    Raises:
        BadInput: If the model takes other inputs, its output doesn't match `labels`, or `by_word` is set without them.

    Examples:
        >>> classifier = tt.TextModel(model, tokenizer, max_length=64, labels=["statement", "question"])
        >>> classifier(["Where is the door?"])[0].label
        'question'
        >>> classifier.save("savedmodels/classifier/1")
    """

    @checked
    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer,
        max_length: Count = 512,
        labels: Sequence[str] | None = None,
        by_word: bool = False,
    ) -> None:
        if by_word and labels is None:
            raise BadInput("labels: expected the names of the classes with by_word=True, got None")
        self.model, self.tokenizer, self.max_length = model, tokenizer, max_length
        self.labels, self.by_word = None if labels is None else tuple(labels), by_word
        for layer in model._flatten_layers():
            if isinstance(layer, PositionalEmbedding) and layer.vocab_size < tokenizer.vocab_size:
                got = f"got {tokenizer.vocab_size:,}. Pass the tokenizer that the model was trained with."
                raise BadInput(f"tokenizer: expected at most vocab_size={layer.vocab_size:,} of {layer.name}, {got}")
            if (most := getattr(layer, "num_positions", None)) is not None:
                self.max_length = min(self.max_length, most)
        try:  # A trial call shows the shapes.
            outputs = self._outputs([EncodedText([tokenizer.vocab_size - 1, EOS_ID], [], [], False)])
        except Exception as error:  # The model and Keras may raise any.
            reason = " ".join(str(error).splitlines()[:1])[:200] or type(error).__name__
            raise BadInput(f"model: expected one input, int32 ids (B, T), got another model: {reason}") from error
        if self.labels is None:
            if isinstance(outputs, dict) and "truncated" in outputs:
                raise BadInput("model: expected outputs with other names than truncated, which exports add")
            return
        if len(set(self.labels)) < len(self.labels) or not all(
            isinstance(label, str) and "\n" not in label for label in self.labels
        ):
            raise BadInput(f"labels: expected unique single-line names, got {', '.join(map(repr, self.labels))}")
        shape = ("T",) * by_word + (len(self.labels),)
        got = outputs[0].shape if isinstance(outputs, np.ndarray) else f"a {type(outputs).__name__}"
        if not isinstance(outputs, np.ndarray) or got != (2,) * by_word + (len(self.labels),):
            expected = f"(B, {', '.join(map(str, shape))})"
            raise BadInput(f"labels: expected a model with the output {expected}, got {got} per text")
        if by_word and (spaced := [label for label in self.labels if not label or " " in label]):
            raise BadInput(f"labels: expected names without spaces with by_word=True, got {spaced[0]!r}")

    def encode(self, texts: Iterable[str | bytes]) -> list[EncodedText]:
        """Returns the token ids of texts, as the model reads them. With `by_word`, words are tokenized one by one."""
        if self.by_word:
            return [self._encode_words(text) for text in strings_in(texts)]
        shortened, fits = truncate_texts([*strings_in(texts)], self.max_length), self.max_length - 1
        rows = self.tokenizer.encode([text for text, _ in shortened])
        cuts = [cut or len(row) > fits for row, (_, cut) in zip(rows, shortened, strict=True)]
        return [EncodedText([*row[:fits], EOS_ID], [], [], cut) for row, cut in zip(rows, cuts, strict=True)]

    def _encode_words(self, text: str | bytes) -> EncodedText:
        ((text, cut),) = truncate_texts([text], self.max_length)  # words of megabytes would take gigabytes
        words, ids, first_tokens = split_words(text), list[int](), list[int]()
        # A word that the normalization removes becomes the unknown token, so that every word has a label.
        for tokens in self.tokenizer.encode(words):
            if len(ids) + max(len(tokens), 1) > self.max_length - 1:
                break
            first_tokens.append(len(ids))
            ids += tokens or [UNKNOWN_ID]
        count = len(first_tokens)
        return EncodedText([*ids, EOS_ID], words[:count], first_tokens, cut or count < len(words))

    @checked
    def __call__(self, texts: str | bytes | Iterable[str | bytes], batch_size: Count = 32) -> Any:
        """Runs the model on texts.

        Args:
            texts: One text or several.
            batch_size: Number of texts per call of the model.

        Returns:
            The model's outputs `(B, ...)`, an array or a dict of arrays. With `labels`, a list of `Label`. With
            `by_word`, a list of lists of `WordLabel`. One text returns one item.
        """
        if isinstance(texts, str | bytes):
            results = self([texts], batch_size)
            return results[0] if self.labels else tree.map_structure(lambda output: output[0], results)
        rows = self.encode(texts)
        if not rows:
            raise BadInput("texts: expected at least one text, got none")
        batches = [self._outputs(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
        if self.labels is None:
            if len({str(tree.map_structure(lambda part: part.shape[1:], batch)) for batch in batches}) > 1:
                got = f"got those of tokens. Pass batch_size={len(rows)}."
                raise BadInput(f"batch_size: expected outputs of one shape for all texts, {got}")
            return tree.map_structure(lambda *parts: np.concatenate(parts), *batches)
        outputs, labels = (output for batch in batches for output in batch), self.labels
        if not self.by_word:
            return [Label(labels[best := int(scores.argmax())], float(scores[best]), scores) for scores in outputs]
        return [
            [
                WordLabel(word, labels[scores[first].argmax()])
                for word, first in zip(row.words, row.first_tokens, strict=True)
            ]
            for row, scores in zip(rows, outputs, strict=True)
        ]

    def _outputs(self, rows: Sequence[EncodedText]) -> Any:
        """Returns the model's outputs as NumPy arrays, floats in float32."""
        ids = keras.ops.convert_to_tensor(padded([row.ids for row in rows]))
        outputs = tree.map_structure(_in_float32, self.model(ids, training=False))
        return tree.map_structure(keras.ops.convert_to_numpy, outputs)

    def signatures(self) -> dict[str, Callable[[Tensor], Any]]:
        return {"serving_default": self._serve}

    def metadata(self) -> dict[str, Any]:
        labels = {} if self.labels is None else {"labels": "\n".join(self.labels)}
        return {"max_source_length": self.max_length, **labels}

    def _serve(self, text: Tensor) -> dict[str, Any]:
        """Returns the outputs of `serving_default` for texts `(B,)`: `__call__` as a graph."""
        # Some of Keras's layers, such as GRU, take no empty batch, so it gets a row, which is dropped at the end.
        rows = tf.shape(tf.ensure_shape(text, [None]))[0]
        text = tf.concat([text, tf.fill([tf.cast(rows == 0, tf.int32)], "")], axis=0)
        outputs = self._serve_rows(text)
        return {name: output if output.shape.rank == 0 else output[:rows] for name, output in outputs.items()}

    def _serve_rows(self, text: Tensor) -> dict[str, Any]:
        """Returns the outputs of at least one text."""
        ids, words, first_tokens, truncated = self._encode_in_graph(text)
        outputs = tree.map_structure(_in_float32, self.model(ids, training=False))
        if self.labels is None:
            flat = tree.flatten(outputs)
            names = [f"output_{i}" for i in range(len(flat))] if len(flat) > 1 else ["output"]
            named = outputs if isinstance(outputs, dict) else dict(zip(names, flat, strict=True))
            return named | {"truncated": truncated}
        names = tf.gather(self.labels, tf.argmax(outputs, axis=-1))
        if not self.by_word:
            return {"label": names, "score": tf.reduce_max(outputs, -1), "scores": outputs, "truncated": truncated}
        outputs = {"words": words, "labels": tf.gather(names, first_tokens, batch_dims=1)}
        joined = {name: tf.strings.reduce_join(row, axis=-1, separator=" ") for name, row in outputs.items()}
        return joined | {"truncated": truncated}

    def _encode_in_graph(self, text: Tensor) -> tuple[Any, Any, Any, Any]:
        """Returns `encode` of texts `(B,)` as tensors: ids `(B, T)`, ragged words and first tokens, and truncated."""
        fits = self.max_length - 1
        text, cut = truncate_in_graph(text, self.max_length)
        if self.by_word:
            words = split_words_in_graph(text)
            tokens = self.tokenizer.tokenize(words.flat_values)
            empty = tf.cast(tokens.row_lengths() == 0, tf.int64)
            unknown = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(empty)], UNKNOWN_ID), empty)
            tokens = words.with_flat_values(tf.concat([tokens, unknown], axis=1))  # (B, words, tokens)
            sizes = tf.cast(tokens.values.row_lengths(), tf.int32)  # tokens of each word, over all texts
            total = tf.concat([[0], tf.cumsum(sizes)], axis=0)
            begin = tf.gather(tf.gather(total, words.row_splits), words.value_rowids())
            ends = words.with_flat_values(total[1:] - begin)
            is_read = ends <= fits
            first_tokens = tf.ragged.boolean_mask(ends - words.with_flat_values(sizes), is_read)
            truncated = cut | (first_tokens.row_lengths() < words.row_lengths())
            words = tf.ragged.boolean_mask(words, is_read)
            ids = tf.ragged.boolean_mask(tokens, is_read).merge_dims(1, 2)
        else:
            tokens = self.tokenizer.tokenize(text)
            ids, words, first_tokens = tokens[:, :fits], None, None
            truncated = cut | (tokens.row_lengths() > fits)
        ids = tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1).to_tensor(PAD_ID)
        return ids, words, first_tokens, truncated


def _in_float32(output: Tensor) -> Any:
    """Casts half precision, which neither NumPy nor REST clients know."""
    is_half = keras.backend.standardize_dtype(output.dtype) in ("bfloat16", "float16")
    return keras.ops.cast(output, "float32") if is_half else output
