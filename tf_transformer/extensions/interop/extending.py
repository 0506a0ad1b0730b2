"""Translators with a larger vocabulary: new tokens, and languages that begin as a relative.

Existing rows of the embedding tables are unchanged. A new row is another token's, or the mean of those that the old
vocabulary splits the new token into. So before training its logit is never above theirs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import check_language
from tf_transformer.extensions.interop.families.m2m100.family import LANGUAGE
from tf_transformer.extensions.interop.families.m2m100.tokenizer import M2M100Tokenizer
from tf_transformer.extensions.interop.families.marian.tokenizer import CODE, SOURCE_VOCABULARY, MarianTokenizer
from tf_transformer.extensions.interop.families.pieces import VOCABULARY, PieceTokenizer, with_pieces
from tf_transformer.extensions.interop.trimming import Order, Row, check_weights, renumbered, with_rows
from tf_transformer.models.weights import adapters
from tf_transformer.tokenizers.tokenizer import UNKNOWN_ID, Tokenizer, check_symbols, engine_of
from tf_transformer.utils.values import shown

M2M100_CODE = re.compile(r"[a-z]{2,3}([_-]\w+)?")


def with_tokens(translator: Any, tokens: Iterable[str], like: str | None) -> Any:
    """Returns a translator with more tokens. The arguments are those of `Translator.with_tokens`."""
    _check(translator)
    tokens = tokens if isinstance(tokens, str) else list(tokens)
    if isinstance(tokens, str) or not tokens:
        raise BadInput(f"tokens: expected a list, such as ['<term>', '</term>'], got {shown(tokens)}")
    check_symbols(tokens, "tokens")
    extended = _extended(translator, dict.fromkeys(tokens, like))
    tokenizer = extended.tokenizer
    for token, ids in zip(tokens, getattr(tokenizer, "source", tokenizer).encode(tokens), strict=True):
        if token not in tokenizer.source_tokens(ids):
            raise BadInput(f"tokens: expected text in the vocabulary's normal form, got {token!r}")
    return extended


def with_language(translator: Any, code: str, like: str, texts: Iterable[str]) -> Any:
    """Returns a translator with one more language. The arguments are those of `Translator.with_language`."""
    _check(translator)
    tokenizer, texts = translator.tokenizer, texts if isinstance(texts, str) else list(texts)
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise BadInput("translator: expected a model of several languages, got one of one pair. Call with_tokens.")
    check_language("like", like, tokenizer.languages)
    if code in tokenizer.languages:
        raise BadInput(f"code: expected a new language, got {code!r}, which the model has")
    (relative,) = tokenizer.tokens([tokenizer.language_ids[like]])
    kind, example = (LANGUAGE, "mic_Latn") if relative == like else (M2M100_CODE, "mic")
    if not isinstance(code, str) or not kind.fullmatch(code):
        raise BadInput(f"code: expected one such as {example}, got {shown(code)}")
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"texts: expected a list of texts in this language, got {shown(texts)}")
    letters, known = "".join(map(tokenizer.source.processor.normalize, texts)), {" ", *tokenizer.source.pieces}
    missing = dict.fromkeys(letter for letter in letters if letter.isprintable() and letter not in known)
    return _extended(translator, missing | {relative.replace(like, code): relative}, code)


def _check(translator: Any) -> None:
    check_weights(translator, "Extend")
    if any(adapters(translator.model)):
        action = "Extend it first, or call replace(model=translator.model.merged())."
        raise BadInput(f"translator: expected a model without LoRA, got adapters. {action}")


def _extended(translator: Any, relatives: Mapping[str, str | None], code: str = "") -> Any:
    """Returns a translator with new tokens, whose rows are those of their relatives, if any.

    The last one is the token of the language `code`, if any.
    """
    old = translator.tokenizer
    sides = {VOCABULARY: (old.tokens(range(old.vocab_size)), getattr(old, "target", old).encode)}
    if SOURCE_VOCABULARY in getattr(old, "contents", {}):
        sides[SOURCE_VOCABULARY] = (old.source.pieces, old.source.encode)
    known = [{*pieces} for pieces, _ in sides.values()]
    for token, like in relatives.items():
        if all(token in pieces for pieces in known):
            raise BadInput(f"tokens: expected new ones, got {token!r}, which is in the vocabulary")
        if like is not None and not any(like in pieces for pieces in known):
            raise BadInput(f"like: expected a token of the vocabulary, got {shown(like)}")
    orders = {name: _order(old, pieces, relatives) for name, (pieces, _) in sides.items()}
    rows = {
        name: [(item,) if isinstance(item, int) else _row(old, *sides[name], item, relatives[item]) for item in order]
        for name, order in orders.items()
    }
    return with_rows(translator, _tokenizer(old, orders, code), rows)


def _order(old: Tokenizer, pieces: list[str], tokens: Iterable[str]) -> Order:
    """Returns old ids and new tokens in the order of new ids."""
    new = [token for token in tokens if token not in pieces]
    # NLLB-200's and M2M100's languages follow all pieces.
    at = min(old.language_ids.values(), default=len(pieces))
    letters, others = ([token for token in new if (len(token) == 1) is single] for single in (True, False))
    return [*range(at), *letters, *range(at, len(pieces)), *others]


def _row(old: Tokenizer, pieces: list[str], encode: Any, token: str, like: str | None) -> Row:
    """Returns the old ids whose mean a new token's row is."""
    if like in pieces:
        return (pieces.index(like),)
    split = [id for id in encode([token])[0] if id != UNKNOWN_ID and pieces[id] != "▁"]
    silent = getattr(old, "description", {"silent": []})["silent"]
    return tuple(split or {*range(old.first_piece, len(pieces))} - {*silent})


def _tokenizer(old: Tokenizer, orders: Mapping[str, Order], code: str) -> Tokenizer:
    """Returns a tokenizer with new tokens."""
    new = [*dict.fromkeys(item for order in orders.values() for item in order if isinstance(item, str))]
    if not isinstance(old, PieceTokenizer):
        return type(old)(with_pieces(old.model, new=new))
    files = dict[str, bytes]()
    for name, model in old.files.items():
        engine = engine_of(model)
        # SentencePiece joins letters to words. Longer tokens are matched before it, as in `transformers`.
        letters = [token for token in new if len(token) == 1 and engine.piece_to_id(token) == engine.unk_id()]
        files[name] = with_pieces(model, new=letters)
    is_code = re.compile(CODE if isinstance(old, MarianTokenizer) else "$").fullmatch
    others = [token for token in new if len(token) > 1 and not is_code(token)]
    languages: dict[str, int | str] = dict(old.language_ids)
    if code:
        languages[code] = others.pop()
    return renumbered(old, orders, files, languages, others)
