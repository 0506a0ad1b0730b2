"""A model as an M2M100 or NLLB-200 checkpoint of `transformers`."""

import re
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.families.checkpoint import PLAIN, TABLES, unused
from tf_transformer.extensions.interop.families.m2m100.files import CONTROL_IDS, SPECIAL
from tf_transformer.extensions.interop.families.m2m100.languages import BY_NAME
from tf_transformer.extensions.interop.families.m2m100.tokenizer import PIECES, M2M100Tokenizer
from tf_transformer.extensions.interop.families.settings import longest_source, search_of, settings_of
from tf_transformer.extensions.interop.families.weights import Collection
from tf_transformer.models.families import Contents
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID

MADE_UP = re.compile("madeupword[0-9]+")  # a name of ours, where the checkpoint has none


def write(translator: TextModel) -> Contents:
    """What a checkpoint of a translator holds.

    A checkpoint's targets start with its end symbol. If training has moved our start symbol's row away from the end
    symbol's, the row is a further symbol, which no output may contain.

    Raises:
        BadInput: the tokenizer is of another family, or numbers its symbols as no published checkpoint does; or logits
            have a bias, which an earlier version let train.
    """
    model: Any = translator.model
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise BadInput(f"tokenizer: expected one of {M2M100Tokenizer.kind}, as its models have it, got {tokenizer!r}")
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    first, others = range(FIRST_ID, FIRST_ID + 2), range(FIRST_ID + 2, len(pieces))
    rows = [*first, EOS_ID, UNKNOWN_ID, *others]
    places = {id: place for place, id in enumerate(rows)}
    if tuple(pieces[id] for id in rows[: len(SPECIAL)]) != SPECIAL or model.config.first_position != 2:
        raise BadInput(
            f"vocabulary: expected {', '.join(SPECIAL)} as its first symbols, got {', '.join(pieces[FIRST_ID:][:4])}"
        )
    if keras.ops.convert_to_numpy(model.embedding.logits_bias)[EOS_ID:].any():
        raise BadInput("logits_bias: expected zeros, since M2M100's logits have no bias, got others")
    weights, (table,) = Collection(), TABLES[:1]
    weights.stacks(model)
    weights.assign(model.embedding.embeddings, table)
    symbols, search = dict[str, Any](CONTROL_IDS), search_of(translator)
    if not np.array_equal(*weights.tensors[table][[BOS_ID, EOS_ID]]):
        symbols["decoder_start_token_id"] = len(rows)
        search |= {"suppress_tokens": [len(rows)], "renormalize_logits": True}
        places[BOS_ID] = len(rows)
        rows.append(BOS_ID)
    weights.tensors[table] = weights.tensors[table][rows]
    languages = {code: places[id] for code, id in tokenizer.said["ids"].items()}
    target = tokenizer.said["target_language"]
    if target:
        search["forced_bos_token_id"] = languages[target]
    tokens_config, vocabulary = _numbered(tokenizer, pieces, places, languages)
    config = {"architectures": ["M2M100ForConditionalGeneration"], "model_type": "m2m_100", "vocab_size": len(rows)}
    return Contents(
        weights.tensors,
        {
            "config.json": settings_of(translator) | config | symbols,
            "generation_config.json": search | symbols,
            "tokenizer_config.json": tokens_config | longest_source(translator),
            **vocabulary,
            **tokenizer.files,
        },
    )


def _numbered(
    tokenizer: M2M100Tokenizer, pieces: list[str], places: dict[int, int], languages: dict[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What tokenizer_config.json says of symbols, and the file of the vocabulary, if the checkpoint has one.

    Raises:
        BadInput: `transformers` would give a piece or a language another id.
    """
    said, silent = tokenizer.said, {*tokenizer.said["silent"]}
    plain = {piece for piece in tokenizer.added if pieces.index(piece) not in silent}
    beside = silent | set(map(pieces.index, plain))
    ids = {pieces[id]: place for id, place in places.items() if id not in beside or pieces[id] in SPECIAL}
    added = {place: pieces[id] for id, place in places.items() if id in beside and not MADE_UP.fullmatch(pieces[id])}
    special = [pieces[id] for id in said["ids"].values()]
    if BOS_ID in places:
        added[places[BOS_ID]] = unused("<start>", dict.fromkeys(pieces))
        special.append(added[places[BOS_ID]])
    config = {
        "src_lang": said["source_language"],
        "tgt_lang": said["target_language"],
        "additional_special_tokens": special,  # of which no text is made
        "added_tokens_decoder": {
            str(place): {"content": symbol, "special": symbol not in plain} | dict.fromkeys(PLAIN, False)
            for place, symbol in added.items()
        },
    }
    if all(pieces[id] == code for code, id in said["ids"].items()):
        engine = tokenizer.source.processor
        order = [*SPECIAL, *(engine.id_to_piece(id) for id in range(3, engine.vocab_size()))]
        if ids != {piece: place for place, piece in enumerate(order)}:
            raise BadInput(f"vocabulary: expected the order of {PIECES}, as NLLB-200's models have it, got another")
        return config | {"tokenizer_class": "NllbTokenizer"}, {}
    for name, codes in BY_NAME.items():
        if all(languages.get(code) == len(ids) + place for place, code in enumerate(codes.split())):
            return config | {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}, {"vocab.json": ids}
    wanted = "expected those of M2M100 after all pieces, in its order"
    raise BadInput(f"languages: {wanted}, got {', '.join([*languages][:5])}")
