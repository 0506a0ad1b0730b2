"""Translators with a smaller vocabulary, and with new tokens and languages.

Many pieces of a multilingual vocabulary belong to scripts that a user never needs. Without them, embeddings, softmax
and exports are smaller. A text of the kept scripts is tokenized as before, since all its pieces are kept.

New tokens leave the existing rows of the embedding tables unchanged. A new row is another token's, or the mean of those
that the old vocabulary splits the new token into. So before training its logit is never above theirs.
"""

import collections
import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import check_language
from tf_transformer.extensions.interop.engines.litert_client import CODE
from tf_transformer.extensions.interop.families.m2m100.family import LANGUAGE
from tf_transformer.extensions.interop.families.m2m100.tokenizer import IDS, M2M100Tokenizer
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE_VOCABULARY
from tf_transformer.extensions.interop.families.pieces import (
    ADDED,
    SPACE,
    VOCABULARY,
    PieceTokenizer,
    archive_of,
    with_pieces,
)
from tf_transformer.inference.translator import Translator
from tf_transformer.models.families import ensemble_of
from tf_transformer.models.weights import adapters
from tf_transformer.tokenizers.tokenizer import FIRST_ID, RESERVED, UNKNOWN_ID, Tokenizer, check_symbols, engine_of
from tf_transformer.utils.values import shown

Order = Sequence[int | str]  # old ids and new tokens by new id
Row = tuple[int, ...]  # ids whose rows of an embedding table have the new row as their mean
SHARE = 0.01  # A script with fewer letters than this share of the texts is not kept.
M2M100_CODE = re.compile(r"[a-z]{2,3}([_-]\w+)?")


def trimmed(
    translator: Translator,
    texts: Iterable[str],
    languages: Sequence[str] | None = None,
    scripts: Sequence[str] | None = None,
) -> Translator:
    """Returns a copy with a smaller vocabulary, whose pieces are those of some texts and scripts.

        small = tt.vocabularies.trimmed(translator, [*english, *german])
        small.save("litert/en-de/1", format="litert")

    Texts in the kept scripts are tokenized as before. Others have unknown tokens, or bytes if there are some.

    Args:
        translator: `Translator` of any family.
        texts: Texts of the source and target languages, such as some of the training set. Their pieces stay.
        languages: Languages of a multilingual model to keep, besides the current ones. `None` keeps all.
        scripts: Scripts whose pieces stay, as Unicode's names of letters begin: "LATIN", "CYRILLIC", "CJK".
            `None` means those with at least 1 % of the letters in `texts`.

    Raises:
        BadInput: If there are no texts, a language or script is not in the vocabulary, or the weights are int8.
    """
    _check(translator, "Trim")
    texts, tokenizer = _strings("texts", texts, "texts of both languages, such as [...]"), translator.tokenizer
    for name, values in (("languages", languages), ("scripts", scripts)):
        if isinstance(values, str):
            raise BadInput(f"{name}: expected a list of names, got {shown(values)}")
    vocabularies, ids = _vocabularies(tokenizer), dict(tokenizer.language_ids)
    if scripts is None:
        counts = collections.Counter(itertools.chain.from_iterable(map(_scripts, itertools.chain(*texts))))
        chosen = {script for script, count in counts.items() if count >= SHARE * counts.total()}
    else:
        chosen = {script.upper() for script in scripts}
        known = {script for piece in vocabularies[VOCABULARY][FIRST_ID:] for script in _scripts(piece)}
        if unknown := chosen - known:
            listed, got = ", ".join(sorted(known)[:99]), ", ".join(sorted(unknown))
            raise BadInput(f"scripts: expected names among {listed}, the scripts of the vocabulary, got {got}")
    for language in languages or ():
        check_language("languages", language, list(tokenizer.languages))
    if languages is not None and ids:
        current = [language for language in tokenizer.current_languages() if isinstance(language, str)]
        ids = {code: ids[code] for code in dict.fromkeys([*current, *languages])}
    orders = _kept(tokenizer, vocabularies, texts, chosen, ids)
    names = {vocabularies[name][id] for name, order in orders.items() for id in order}
    rows = {name: [(id,) for id in order] for name, order in orders.items()}
    return _with_rows(translator, _renumbered(tokenizer, orders, ids, names), rows)


def with_tokens(translator: Translator, tokens: Iterable[str], like: str | None = None) -> Translator:
    """Returns a copy with more tokens, to fine-tune: `tt.vocabularies.with_tokens(translator, ["<term>"])`.

    Args:
        translator: `Translator` of any family.
        tokens: Strings without whitespace, each always one token: characters of a script, glossary tags, names.
        like: Token whose row of the embedding table the new ones begin with. `None` means the mean of the tokens
            that the old vocabulary splits each into, or of all tokens if it has none.

    Raises:
        BadInput: If a token is in the vocabulary, `like` is not, or the model has int8 weights or LoRA.
    """
    _check(translator, "Extend")
    check_symbols(tokens := _strings("tokens", tokens, "a list, such as ['<term>', '</term>']"), "tokens")
    extended = _extended(translator, dict.fromkeys(tokens, like))
    tokenizer = extended.tokenizer
    for token, ids in zip(tokens, getattr(tokenizer, "source", tokenizer).encode(tokens), strict=True):
        if token not in tokenizer.source_tokens(ids):
            raise BadInput(f"tokens: expected text in the vocabulary's normal form, got {token!r}")
    return extended


def with_language(translator: Translator, code: str, like: str, texts: Iterable[str] = ()) -> Translator:
    """Returns a copy of a multilingual model with one more language, to fine-tune.

        start = tt.vocabularies.with_language(translator, "mic_Latn", like="fra_Latn", texts=sentences)

    Args:
        translator: `Translator` of a multilingual model.
        code: New language, in the form of the model's codes.
        like: Related language, whose row of the embedding table the new one begins with.
        texts: Texts in the new language. Characters that the vocabulary lacks become tokens, as by `with_tokens`.

    Raises:
        BadInput: If `code` exists, `like` does not, or the model has one language pair, int8 weights or LoRA.
    """
    _check(translator, "Extend")
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise BadInput("translator: expected a model of several languages, got one of one pair. Call with_tokens.")
    check_language("like", like, tokenizer.languages)
    if code in tokenizer.languages:
        raise BadInput(f"code: expected a new language, got {code!r}, which the model has")
    (relative,) = tokenizer.tokens([tokenizer.language_ids[like]])
    kind, example = (LANGUAGE, "mic_Latn") if relative == like else (M2M100_CODE, "mic")
    if not isinstance(code, str) or not kind.fullmatch(code):
        raise BadInput(f"code: expected one such as {example}, got {shown(code)}")
    texts = _strings("texts", texts, "a list of texts in this language", least=0)
    letters, known = "".join(map(tokenizer.source.processor.normalize, texts)), {" ", *tokenizer.source.pieces}
    missing = dict.fromkeys(letter for letter in letters if letter.isprintable() and letter not in known)
    return _extended(translator, missing | {relative.replace(like, code): relative}, code)


def _strings(name: str, values: Iterable[str], expected: str, least: int = 1) -> list[str]:
    values = values if isinstance(values, str) else list(values)
    if isinstance(values, str) or len(values) < least or not all(isinstance(value, str) for value in values):
        raise BadInput(f"{name}: expected {expected}, got {shown(values)}")
    return values


def _check(translator: Any, action: str) -> None:
    """Checks that rows of the embedding tables can be dropped, or also added. `action` begins the advice."""
    if not isinstance(translator, Translator):
        raise BadInput(f"translator: expected a Translator, got {shown(translator)}. Call Translator.from_pretrained.")
    if any(weight.dtype == "int8" for weight in translator.model.weights):
        raise BadInput(f"translator: expected weights of 16 or 32 bits, got int8. {action} it before astype.")
    if action == "Extend" and any(adapters(translator.model)):
        action = "Extend it first, or call replace(model=translator.model.merged())."
        raise BadInput(f"translator: expected a model without LoRA, got adapters. {action}")


@functools.cache
def _script(character: str) -> str:
    # The standard library has no table of scripts, but names begin with them: "CYRILLIC SMALL LETTER A". Marks and
    # punctuation are common to many.
    if unicodedata.category(character)[0] not in "LN" or (character.isascii() and not character.isalpha()):
        return ""
    return unicodedata.name(character, "").partition(" ")[0]


def _scripts(text: str) -> set[str]:
    return {_script(character) for character in text} - {""}


def _vocabularies(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Returns the tokens by id of the vocabulary, or of those of targets and sources, by file."""
    vocabularies = {VOCABULARY: tokenizer.tokens(range(tokenizer.vocab_size))}
    if SOURCE_VOCABULARY in getattr(tokenizer, "contents", {}):
        vocabularies[SOURCE_VOCABULARY] = tokenizer.source.pieces  # type: ignore[attr-defined]
    return vocabularies


def _kept(
    tokenizer: Tokenizer,
    vocabularies: Mapping[str, list[str]],
    texts: list[str],
    scripts: set[str],
    languages: Mapping[str, int],
) -> dict[str, list[int]]:
    """Returns the sorted ids to keep, for each file of a vocabulary. `languages` are those to keep."""
    dropped = {*tokenizer.language_ids.values()} - {*languages.values()}
    silent = getattr(tokenizer, "description", {"silent": []})["silent"]
    # The first ids are control tokens, added strings and bytes.
    always = {*range(max(FIRST_ID, tokenizer.first_piece)), *languages.values(), *silent} - dropped
    sources, targets, kept = tokenizer.encode(texts), tokenizer.encode_target(texts), dict[str, list[int]]()
    for name, pieces in vocabularies.items():
        rows = sources + targets if len(vocabularies) == 1 else targets if name == VOCABULARY else sources
        used = {*itertools.chain(*rows)} | {pieces.index(token) for token in tokenizer.added}
        foreign = [pieces[id] for id in used - always if not _scripts(pieces[id]) <= scripts]
        # SentencePiece makes a piece from its parts.
        parts = {piece[i:j] for piece in foreign for i, j in itertools.combinations(range(len(piece) + 1), 2)}
        kept[name] = [
            id
            for id, piece in enumerate(pieces)
            if id in always
            or id in used
            or piece in parts
            or RESERVED.fullmatch(piece)
            or (id not in dropped and _scripts(piece) <= scripts)
        ]
    return kept


def _extended(translator: Any, relatives: Mapping[str, str | None], code: str = "") -> Any:
    """Returns a translator with new tokens, whose rows are those of their relatives, if any.

    The last one is the token of the language `code`, if any.
    """
    old, orders, rows = translator.tokenizer, dict[str, Order](), dict[str, list[Row]]()
    vocabularies = _vocabularies(old)
    known = [{*pieces} for pieces in vocabularies.values()]
    for token, like in relatives.items():
        if all(token in pieces for pieces in known):
            raise BadInput(f"tokens: expected new ones, got {token!r}, which is in the vocabulary")
        if like is not None and not any(like in pieces for pieces in known):
            raise BadInput(f"like: expected a token of the vocabulary, got {shown(like)}")
    silent = {*getattr(old, "description", {"silent": []})["silent"]}
    for name, pieces in vocabularies.items():
        side = getattr(old, "source" if name == SOURCE_VOCABULARY else "target", old)
        new = dict[str, Row]()
        for token, like in relatives.items():
            if token not in pieces and like is not None and like in pieces:
                new[token] = (pieces.index(like),)
            elif token not in pieces:
                split = [id for id in side.encode([token])[0] if id != UNKNOWN_ID and pieces[id] != SPACE]
                new[token] = tuple(split or {*range(old.first_piece, len(pieces))} - silent)
        # A letter becomes a piece of SentencePiece, before NLLB-200's and M2M100's languages. Other tokens are last.
        at = min(old.language_ids.values(), default=len(pieces))
        letters, others = ([token for token in new if (len(token) == 1) is single] for single in (True, False))
        orders[name] = [*range(at), *letters, *range(at, len(pieces)), *others]
        rows[name] = [(item,) if isinstance(item, int) else new[item] for item in orders[name]]
    languages = old.language_ids | ({code: [*relatives][-1]} if code else {})
    return _with_rows(translator, _renumbered(old, orders, languages), rows)


def _renumbered(
    old: Tokenizer,
    orders: Mapping[str, Order],
    languages: Mapping[str, int | str],
    names: Container[str] | None = None,
) -> Tokenizer:
    """Returns a tokenizer with vocabularies in these orders. SentencePiece keeps the pieces in `names`, or all."""
    new = [*dict.fromkeys(item for order in orders.values() for item in order if isinstance(item, str))]
    if not isinstance(old, PieceTokenizer):
        return type(old)(with_pieces(old.model, names, new))
    contents: dict[str, Any] = dict(old.contents)
    for name, model in old.files.items():
        engine = engine_of(model)
        # SentencePiece merges letters. Longer tokens are matched before it, as in `transformers`.
        letters = [token for token in new if len(token) == 1 and engine.piece_to_id(token) == engine.unk_id()]
        contents[name] = with_pieces(model, names, letters)
    for name, pieces in _vocabularies(old).items():
        contents[name] = [pieces[item] if isinstance(item, int) else item for item in orders[name]]
    if isinstance(old, M2M100Tokenizer):
        ids = {item: id for id, item in enumerate(orders[VOCABULARY])}
        silent = [*old.description["silent"], *(item for item in languages.values() if isinstance(item, str))]
        codes = {code: ids[item] for code, item in languages.items()}
        contents[IDS] = {**old.description, "ids": codes, "silent": [ids[item] for item in silent if item in ids]}
    is_code = re.compile(CODE if old.target.has_codes else "$").fullmatch
    if added := [token for token in new if len(token) > 1 and not is_code(token) and token not in languages.values()]:
        contents[ADDED] = {**old.added, **dict.fromkeys(added, False)}
    return type(old)(archive_of(contents))


def _with_rows(translator: Any, tokenizer: Tokenizer, rows: Mapping[str, Sequence[Row]]) -> Any:
    """Returns a copy of a translator for another tokenizer. Each row of its embedding tables is a mean of old rows."""
    target = rows[VOCABULARY]
    source = rows.get(SOURCE_VOCABULARY, target)

    def changed(model: Any) -> Any:
        model = model.merged()
        sizes = {"vocab_size": len(target)}
        if getattr(model.config, "source_vocab_size", None) is not None:
            sizes["source_vocab_size"] = len(source)
        new_model = model.like(dataclasses.replace(model.config, **sizes))
        for new, old in zip(new_model.weights, model.weights, strict=True):
            value = keras.ops.convert_to_numpy(old)
            if tuple(new.shape) != value.shape:
                order = source if "source_embedding" in old.path else target
                # A mean of all pieces takes long, and several new tokens may have it.
                means = {row: value[[*row]].astype("float32").mean(axis=0) for row in {*order} if len(row) > 1}
                value = np.take(value, [row[0] for row in order], axis=0)
                for id in (id for id, row in enumerate(order) if row in means):
                    value[id] = means[order[id]]
            new.assign(value)
        return new_model

    models = [changed(model) for model in getattr(translator.model, "models", [translator.model])]
    return translator.replace(model=ensemble_of(models), tokenizer=tokenizer)
