"""The family of M2M100 and NLLB-200: how its checkpoints are read, and how a model of it becomes one."""

import re
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.families.checkpoint import (
    PLAIN,
    TABLES,
    longest_source,
    search_of,
    settings_of,
    unused,
)
from tf_transformer.extensions.interop.families.m2m100.files import BY_NAME, CONTROL_IDS, SPECIAL, M2M100Checkpoint
from tf_transformer.extensions.interop.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.extensions.interop.families.m2m100.tokenizer import PIECES, M2M100Tokenizer
from tf_transformer.extensions.interop.families.weights import Collection
from tf_transformer.models.families import Contents, Family
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID

MADE_UP = re.compile("madeupword[0-9]+")  # our name for an id without one


def write(translator: TextModel) -> Contents:
    """Returns the contents of a checkpoint.

    Its targets start with EOS. If training has moved BOS's row of the embedding table away from EOS's, that row becomes
    an additional token, which no output may contain.
    """
    model: Any = translator.model
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise BadInput(f"tokenizer: expected one of {M2M100Tokenizer.kind}, as its models have it, got {tokenizer!r}")
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    rows = [FIRST_ID, FIRST_ID + 1, EOS_ID, UNKNOWN_ID, *range(FIRST_ID + 2, len(pieces))]
    places = {id: row for row, id in enumerate(rows)}
    if tuple(pieces[id] for id in rows[: len(SPECIAL)]) != SPECIAL or model.config.first_position != 2:
        got = ", ".join(pieces[FIRST_ID:][:4])
        raise BadInput(f"vocabulary: expected {', '.join(SPECIAL)} as its first symbols, got {got}")
    # An earlier version trained it.
    if keras.ops.convert_to_numpy(model.embedding.logits_bias)[EOS_ID:].any():
        raise BadInput("logits_bias: expected zeros, since M2M100's logits have no bias, got others")
    weights, table = Collection(), TABLES[0]
    weights.stacks(model)
    weights.assign(model.embedding.embeddings, table)
    symbols, search = dict[str, Any](CONTROL_IDS), search_of(translator)
    if not np.array_equal(*weights.tensors[table][[BOS_ID, EOS_ID]]):
        symbols["decoder_start_token_id"] = len(rows)
        search |= {"suppress_tokens": [len(rows)], "renormalize_logits": True}
        places[BOS_ID] = len(rows)
        rows.append(BOS_ID)
    weights.tensors[table] = weights.tensors[table][rows]
    languages = {code: places[id] for code, id in tokenizer.description["ids"].items()}
    if target := tokenizer.description["target_language"]:
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
    """Returns tokenizer_config.json and the file of the vocabulary, if any.

    Args:
        tokenizer: The tokenizer.
        pieces: Its tokens by our ids.
        places: The checkpoint's ids by ours.
        languages: The checkpoint's ids by code.

    Raises:
        BadInput: If `transformers` would give a token or a language another id.
    """
    description, silent = tokenizer.description, {*tokenizer.description["silent"]}
    plain = {piece for piece in tokenizer.added if pieces.index(piece) not in silent}
    beside = silent | set(map(pieces.index, plain))
    ids = {pieces[id]: row for id, row in places.items() if id not in beside or pieces[id] in SPECIAL}
    added = {row: pieces[id] for id, row in places.items() if id in beside and not MADE_UP.fullmatch(pieces[id])}
    special = [pieces[id] for id in description["ids"].values()]
    if BOS_ID in places:
        added[places[BOS_ID]] = unused("<start>", dict.fromkeys(pieces))
        special.append(added[places[BOS_ID]])
    config = {
        "src_lang": description["source_language"],
        "tgt_lang": description["target_language"],
        "additional_special_tokens": special,
        "added_tokens_decoder": {
            str(row): {"content": symbol, "special": symbol not in plain} | PLAIN for row, symbol in added.items()
        },
    }
    if all(pieces[id] == code for code, id in description["ids"].items()):
        engine = tokenizer.source.processor
        order = [*SPECIAL, *(engine.id_to_piece(id) for id in range(3, engine.vocab_size()))]
        if ids != {piece: row for row, piece in enumerate(order)}:
            raise BadInput(f"vocabulary: expected the order of {PIECES}, as NLLB-200's models have it, got another")
        return config | {"tokenizer_class": "NllbTokenizer"}, {}
    for name, codes in BY_NAME.items():
        if all(languages.get(code) == len(ids) + i for i, code in enumerate(codes.split())):
            return config | {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}, {"vocab.json": ids}
    wanted = "expected those of M2M100 after all pieces, in its order"
    raise BadInput(f"languages: {wanted}, got {', '.join([*languages][:5])}")


FAMILY = Family(
    "m2m100",
    M2M100Config,
    M2M100Transformer,
    M2M100Tokenizer,
    recognizes=lambda folder: (folder / PIECES).is_file(),
    load=lambda folder: M2M100Checkpoint(folder).load(),
    write=write,
)
