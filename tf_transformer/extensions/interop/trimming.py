"""Translators with a smaller vocabulary: the pieces of some texts and of the scripts that these are written in.

Many pieces of a multilingual vocabulary belong to scripts that a user never needs. Without them, embeddings, softmax
and exports are smaller. A text of the kept scripts is tokenized as before, since all its pieces are kept.
"""

import collections
import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import check_language
from tf_transformer.extensions.interop.families.m2m100.tokenizer import IDS, M2M100Tokenizer
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE_VOCABULARY
from tf_transformer.extensions.interop.families.pieces import ADDED, VOCABULARY, PieceTokenizer, archive_of, with_pieces
from tf_transformer.models.families import together
from tf_transformer.tokenizers.tokenizer import FIRST_ID, RESERVED, Tokenizer
from tf_transformer.utils.values import shown

Order = Sequence[int | str]  # old ids and new tokens by new id
Row = tuple[int, ...]  # ids whose rows of an embedding table have the new row as their mean
SHARE = 0.01  # A script with fewer letters than this share of the texts is not kept.


def trimmed(
    translator: Any, texts: Iterable[str], languages: Sequence[str] | None, scripts: Sequence[str] | None
) -> Any:
    """Returns a translator with fewer pieces. The arguments are those of `Translator.trimmed`."""
    texts = texts if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"texts: expected texts of both languages, such as [...], got {shown(texts)}")
    tokenizer = translator.tokenizer
    check_weights(translator, "Trim")
    for name, values in (("languages", languages), ("scripts", scripts)):
        if isinstance(values, str):
            raise BadInput(f"{name}: expected a list of names, got {shown(values)}")
    chosen = scripts_of(texts) if scripts is None else {script.upper() for script in scripts}
    pieces = tokenizer.tokens(range(FIRST_ID, tokenizer.vocab_size))
    of_vocabulary = {script for piece in pieces for script in _scripts(piece)}
    if scripts is not None and (unknown := chosen - of_vocabulary):
        listed, got = ", ".join(sorted(of_vocabulary)[:99]), ", ".join(sorted(unknown))
        raise BadInput(f"scripts: expected names among {listed}, the scripts of the vocabulary, got {got}")
    for language in languages or ():
        check_language("languages", language, list(tokenizer.languages))
    ids = dict(tokenizer.language_ids)
    if languages is not None and ids:
        current = [language for language in tokenizer.current_languages() if isinstance(language, str)]
        ids = {code: ids[code] for code in dict.fromkeys([*current, *languages])}
    orders = _orders(tokenizer, texts, chosen, ids)
    rows = {name: [(id,) for id in order] for name, order in orders.items()}
    return with_rows(translator, _tokenizer(tokenizer, orders, ids), rows)


def check_weights(translator: Any, action: str) -> None:
    """Raises `BadInput` if embedding tables are quantized. `action` begins the advice."""
    if any(weight.dtype == "int8" for weight in translator.model.weights):
        raise BadInput(f"translator: expected weights of 16 or 32 bits, got int8. {action} it before astype.")


def scripts_of(texts: Iterable[str]) -> set[str]:
    """Returns the scripts that have at least 1 % of the letters of texts."""
    counts = collections.Counter(script for text in texts for character in text for script in _scripts(character))
    return {script for script, count in counts.items() if count >= SHARE * counts.total()}


@functools.cache
def _script(character: str) -> str:
    # The standard library has no table of scripts, but names begin with them: "CYRILLIC SMALL LETTER A". Marks and
    # punctuation are common to many.
    if unicodedata.category(character)[0] not in "LN" or (character.isascii() and not character.isalpha()):
        return ""
    return unicodedata.name(character, "").partition(" ")[0]


def _scripts(text: str) -> set[str]:
    return {_script(character) for character in text} - {""}


def _orders(
    tokenizer: Tokenizer, texts: list[str], scripts: set[str], languages: Mapping[str, int]
) -> dict[str, list[int]]:
    """Returns the sorted ids to keep, for each file of a vocabulary. `languages` are those to keep."""
    dropped = {*tokenizer.language_ids.values()} - {*languages.values()}
    silent = getattr(tokenizer, "description", {"silent": []})["silent"]
    # The first ids are control tokens, added strings and bytes.
    always = {*range(max(FIRST_ID, tokenizer.first_piece)), *languages.values(), *silent} - dropped

    def kept(pieces: list[str], rows: list[list[int]]) -> list[int]:
        used = {*itertools.chain(*rows)} | {pieces.index(token) for token in tokenizer.added}
        foreign = [pieces[id] for id in used - always if not _scripts(pieces[id]) <= scripts]
        # SentencePiece makes a piece from its parts.
        parts = {piece[i:j] for piece in foreign for i, j in itertools.combinations(range(len(piece) + 1), 2)}
        return [
            id
            for id, piece in enumerate(pieces)
            if id in always
            or id in used
            or piece in parts
            or RESERVED.fullmatch(piece)
            or (id not in dropped and _scripts(piece) <= scripts)
        ]

    sources, targets = tokenizer.encode(texts), tokenizer.encode_target(texts)
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    if SOURCE_VOCABULARY in getattr(tokenizer, "contents", {}):
        source_pieces: list[str] = tokenizer.source.pieces  # type: ignore[attr-defined]
        return {VOCABULARY: kept(pieces, targets), SOURCE_VOCABULARY: kept(source_pieces, sources)}
    return {VOCABULARY: kept(pieces, sources + targets)}


def _tokenizer(old: Tokenizer, orders: Mapping[str, list[int]], languages: Mapping[str, int]) -> Tokenizer:
    """Returns a tokenizer with these ids, numbered from 0."""
    if not isinstance(old, PieceTokenizer):
        kept = {*orders[VOCABULARY]}
        return type(old)(with_pieces(old.model, lambda id, _: id in kept))
    names = {*old.source_tokens(orders.get(SOURCE_VOCABULARY, ())), *old.tokens(orders[VOCABULARY])}
    files = {name: with_pieces(model, lambda _, piece: piece in names) for name, model in old.files.items()}
    return renumbered(old, orders, files, languages)


def renumbered(
    old: PieceTokenizer,
    orders: Mapping[str, Order],
    files: Mapping[str, bytes],
    languages: Mapping[str, int | str],
    added: Sequence[str] = (),
) -> PieceTokenizer:
    """Returns a tokenizer with vocabularies in these orders, SentencePiece models in `files`, and `added` tokens."""
    contents: dict[str, Any] = {**old.contents, **files}
    for name, order in orders.items():
        pieces = (old.source if name == SOURCE_VOCABULARY else old.target).pieces
        contents[name] = [pieces[item] if isinstance(item, int) else item for item in order]
    if isinstance(old, M2M100Tokenizer):
        ids = {item: id for id, item in enumerate(orders[VOCABULARY])}
        silent = [*old.description["silent"], *(item for item in languages.values() if isinstance(item, str))]
        codes = {code: ids[item] for code, item in languages.items()}
        contents[IDS] = {**old.description, "ids": codes, "silent": [ids[item] for item in silent if item in ids]}
    if added:
        contents[ADDED] = {**old.added, **dict.fromkeys(added, False)}
    return type(old)(archive_of(contents))


def with_rows(translator: Any, tokenizer: Tokenizer, rows: Mapping[str, Sequence[Row]]) -> Any:
    """Returns a copy of a translator for another tokenizer. Each row of its embedding tables is a mean of old rows."""
    target = rows[VOCABULARY]
    source = rows.get(SOURCE_VOCABULARY, target)

    def changed(model: Any) -> Any:
        model = model.merged()
        sizes = {"vocab_size": len(target)}
        if getattr(model.config, "source_vocab_size", None) is not None:
            sizes["source_vocab_size"] = len(source)
        new_model = type(model)(dataclasses.replace(model.config, **sizes), dtype=model.dtype_policy)
        new_model.build()
        for new, old in zip(new_model.weights, model.weights, strict=True):
            value = keras.ops.convert_to_numpy(old)
            if tuple(new.shape) != value.shape:
                order = source if "source_embedding" in old.path else target
                means = {row: value[[*row]].astype("float32").mean(axis=0) for row in {*order} if len(row) > 1}
                value = np.take(value, [row[0] for row in order], axis=0)
                for id in (id for id, row in enumerate(order) if row in means):
                    value[id] = means[order[id]]
            new.assign(value)
        return new_model

    models = [changed(model) for model in getattr(translator.model, "models", [translator.model])]
    return translator.replace(model=together(models), tokenizer=tokenizer)
