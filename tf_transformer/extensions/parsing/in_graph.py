"""The parser as functions of tensors, for a SavedModel. `Parser` has the same functions in Python."""

from typing import Any

import tensorflow as tf

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.parsing.constraint import LEAF, Grammar
from tf_transformer.extensions.parsing.corpus import ParserInput
from tf_transformer.extensions.parsing.treebank import BRACKETS, ESCAPES, NO_TAG, ROOT
from tf_transformer.masks import PAD_ID
from tf_transformer.serving.contract import Root, Signature
from tf_transformer.tokenizers.strings import valid_text
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID, Tokenizer
from tf_transformer.utils.type_names import Tensor


def read(text: Tensor, tokenizer: Tokenizer, most: int) -> ParserInput:
    """Reads texts [B], without words beyond the first `most` subwords. Like `Parser.read`."""
    # These classes are those of `SEPARATORS`, so that the graph and Python see the same words.
    words = tf.strings.split(tf.strings.regex_replace(valid_text(text), r"[\p{Z}\p{Cc}]+", " "))
    plain = words.flat_values
    for name, bracket in BRACKETS.items():
        plain = tf.strings.regex_replace(plain, name, bracket)
    pieces = words.with_flat_values(tokenizer.tokenize(plain))  # [B, None, None]
    by_word = pieces.values
    unknown = tf.fill([by_word.nrows(), 1], UNKNOWN_ID)
    firsts = pieces.with_values(tf.concat([by_word, unknown], axis=1)[:, :1].flat_values)
    sizes = tf.maximum(tf.cast(by_word.row_lengths(), tf.int32), 1)
    before = tf.gather(tf.concat([[0], tf.cumsum(sizes)], axis=0), words.row_splits)[:-1]
    ends = words.with_flat_values(tf.cumsum(sizes)) - before[:, tf.newaxis]
    fits = ends <= most
    count = tf.reduce_sum(tf.cast(fits, tf.int32), axis=1)
    ids = tf.ragged.boolean_mask(pieces, fits).merge_dims(1, 2)
    return ParserInput(
        words=words,
        count=count,
        firsts=firsts.to_tensor(),
        ids=tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1).to_tensor(PAD_ID),
        length=tf.reduce_sum(tf.ragged.boolean_mask(words.with_flat_values(sizes), fits), axis=1),
        truncated=count < tf.cast(words.row_lengths(), tf.int32),
    )


def trees(ids: Tensor, source: ParserInput, grammar: Grammar, written: list[str]) -> Any:
    """Converts ids [B, L] of linearized trees to trees [B]. Like `Parser.tree`."""
    words = source.words
    for pattern, replacement in ESCAPES:
        words = tf.strings.regex_replace(words, pattern, replacement)
    is_leaf = tf.gather(grammar.kinds, ids) == LEAF
    index = tf.maximum(tf.cumsum(tf.cast(is_leaf, tf.int32), axis=1) - 1, 0)
    dense = tf.pad(words.to_tensor(""), [[0, 0], [0, 1]])
    word = tf.gather(dense, index, batch_dims=1)  # [B, L]
    names = tf.gather(written, ids)
    inner = tf.strings.reduce_join(tf.where(is_leaf, tf.strings.join([names, word, ")"]), names), axis=1)
    is_omitted = tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)) >= source.count[:, tf.newaxis]
    omitted = tf.strings.join([f" ({NO_TAG} ", tf.ragged.boolean_mask(words, is_omitted), ")"])
    tree = tf.strings.join([f"({ROOT}", inner, tf.strings.reduce_join(omitted, axis=1), ")"])
    return tf.where(source.count > 0, tree, "")


class ParserExport(Root):
    """A parser's SavedModel, which fixes the search options. `metadata` are additional values of `model_info`."""

    def __init__(self, parser: Any, **metadata: Any) -> None:
        def parse(text: Tensor) -> Any:
            tree, score, truncated = parser.parse(tf.ensure_shape(text, [None]))
            return {"tree": tree, "score": score, "truncated": truncated}

        translator = parser.translator
        super().__init__(
            translator.model,
            translator.tokenizer,
            [Signature("serving_default", parse), Signature("parse", parse)],
            {"serving_default": {}, "parse": {}},
            **metadata,
            **{name: value for name, value in translator.options.items() if SEARCH_OPTIONS[name].parser},
        )
