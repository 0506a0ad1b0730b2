"""Reads an M2M100 or NLLB-200 checkpoint, written by Hugging Face's `transformers`: vocabulary, settings, weights."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.base.reading import check_kinds, made_of, read_bytes, read_json, reading
from tf_transformer.config import ACTIVATIONS, BadInput
from tf_transformer.families import checkpoint
from tf_transformer.families.checkpoint import NO_SHARE, Added, Assignment, check_settings
from tf_transformer.families.m2m100.languages import BY_NAME, NLLB, languages_among
from tf_transformer.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.families.marian.model import CONTROLS
from tf_transformer.text.tokenizer import engine_of

PIECES = "sentencepiece.bpe.model"
KIND = "M2M100"  # in messages
CONTROL_IDS = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}  # with their defaults
# What the files of these say is read here; other tokenizers of such models give their languages other places.
TOKENIZERS = (None, "M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "TokenizersBackend")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first ids of NLLB's vocabulary


def load_model(directory: Path) -> M2M100Transformer:
    """Load a checkpoint from its folder: config.json, the files of `read_vocabulary`, and one of model.safetensors (or
    several such files, and model.safetensors.index.json) and pytorch_model.bin.

    Raises:
        BadInput: the folder holds something else, or a kind of M2M100 that is not supported.
    """
    settings = _read_settings(directory)
    weights_file, tensors = checkpoint.read_tensors(directory, KIND, checkpoint.READERS)
    with reading(directory / "config.json", f"the settings of {KIND}"):
        config = _config_of(settings)
        config.check_stored(checkpoint.size_of_weights(directory))
    rows = read_vocabulary(directory).rows
    model = M2M100Transformer(dataclasses.replace(config, vocab_size=len(rows)))
    model.build()
    with reading(weights_file, f"the weights of {KIND}"):
        weights = Assignment(tensors)
        weights.stacks(model)
        weights.norm(model.encoder_norm, "model.encoder.layer_norm")
        weights.norm(model.decoder_norm, "model.decoder.layer_norm")
        names = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
        weights.table(model.embedding.embeddings, [*names, "lm_head.weight"], rows)
        weights.check_none_left(KIND)
    model.embedding.logits_bias.assign(np.repeat([NO_SHARE, 0], [CONTROLS, len(rows) - CONTROLS]))
    return model


class Vocabulary(NamedTuple):
    """A checkpoint's vocabulary in the order of our ids."""

    pieces: list[str]  # by our id
    rows: list[int]  # by our id, the checkpoint's own
    languages: dict[str, int]  # our ids, by code
    silent: list[int]  # our ids without a text


def read_vocabulary(directory: Path) -> Vocabulary:
    """Read a vocabulary in our order: padding, start, end, unknown, then the checkpoint's other ids in their order.

    M2M100 numbers its pieces in vocab.json; without this file they have NLLB's order: four control symbols, the pieces
    of sentencepiece.bpe.model, the languages, the mask. The languages come after all pieces. The tokenizer's files may
    give languages other ids, and further languages theirs.

    Raises:
        BadInput: the folder has no vocabulary, or the file holds something else; the files leave an id open; or a
            symbol was added that texts may contain.
    """
    settings, size, added = _read_settings(directory), _size(directory), checkpoint.added_tokens(directory)
    file, ids, symbols = _numbered(directory, added)
    names = ids | {symbol: len(ids) + place for place, symbol in enumerate(symbols.values())}
    names |= {symbol: token.id for symbol, token in added.items() if symbol not in ids}
    controls = {name: settings.get(name, id) for name, id in CONTROL_IDS.items()} | {"<unk>": ids.get("<unk>")}
    for name, id in (names | controls).items():
        if type(id) is not int or not 0 <= id < size:
            where = file if name in ids and name not in CONTROL_IDS else directory / "config.json"
            raise BadInput(f"{where}: {name}: expected an id below vocab_size={size}, got {id!r}")
    checkpoint.check_ids_differ(directory, names)
    pad, start, end, unknown = controls.values()
    rows = [pad, start, end, unknown, *(id for id in range(size) if id not in (end, unknown))]
    by_id, number = {id: piece for piece, id in names.items()}, itertools.count()
    pieces = [by_id[id] if id in by_id else f"madeupword{next(number)}" for id in rows]  # fairseq's names
    pieces[:2] = [_unused(name, names) for name in ("<pad>", "<s>")]
    ours = {id: place for place, id in enumerate(rows)}
    texts = {id for piece, id in ids.items() if piece not in SPECIAL}
    silent = [place for place, id in enumerate(rows) if id not in texts]
    languages = {code: ours[names[symbol]] for code, symbol in symbols.items() if code}
    return Vocabulary(pieces, rows, languages, silent)


def _numbered(directory: Path, added: dict[str, Added]) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The file of the pieces, their ids, and by code the symbols of languages and, as "", the mask. These have the next
    ids in this order, if `added` does not say others."""
    file = directory / "tokenizer_config.json"
    said = checkpoint.read_if_there(file)
    check_kinds(said, {"language_codes": str})
    if (kind := said.get("tokenizer_class")) not in TOKENIZERS:
        raise BadInput(f"{file}: tokenizer_class: expected one of {', '.join(TOKENIZERS[1:])}; got {str(kind)[:99]!r}")
    if (directory / "vocab.json").is_file():
        name = said.get("language_codes", "m2m100")
        if name not in BY_NAME:
            raise BadInput(f"{file}: language_codes: expected one of {', '.join(BY_NAME)}; got {str(name)[:99]!r}")
        file, ids = directory / "vocab.json", read_json(directory / "vocab.json")
        stated = {symbol[2:-2]: symbol for symbol in added if re.fullmatch("__.+__", symbol)}
        symbols = {code: f"__{code}__" for code in BY_NAME[name].split()} | stated
    elif kind == "M2M100Tokenizer":
        raise BadInput(f"expected a checkpoint of {KIND}, found no vocab.json in {directory}")
    else:
        if legacy := said.get("legacy_behaviour"):
            raise BadInput(
                f"{file}: legacy_behaviour: expected false, with the language first in a text; got {legacy!r}"
            )
        file = directory / PIECES
        with reading(file, "a SentencePiece model"):
            engine = engine_of(read_pieces(directory))
            pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]  # after its own control symbols
        ids = {piece: id for id, piece in enumerate([*SPECIAL, *pieces])}
        stated = {code: code for code in languages_among([*added])}
        symbols = _languages_of(directory, [*stated]) | stated
    for symbol, token in added.items():
        if ids.get(symbol, token.id) != token.id:
            raise BadInput(f"{directory}: {symbol}: expected the id {ids[symbol]} of {file.name}, got {token.id}")
        if not token.is_special and symbol not in stated.values():
            raise BadInput(f"{directory}: expected added tokens that are languages or control symbols, got {symbol!r}")
    return file, ids, symbols


def _languages_of(directory: Path, stated: list[str]) -> dict[str, str]:
    """NLLB's languages whose ids follow the pieces, in this order, and the mask; {} if the tokenizer's files have ids.

    Args:
        directory: the checkpoint's folder.
        stated: the codes that the files number: none, further ones, or all.

    Raises:
        BadInput: the files list a language without an id that is not NLLB's.
    """
    own = NLLB.split()
    listed = languages_among(checkpoint.listed_tokens(directory))
    if unknown := [code for code in listed if code not in {*own, *stated}]:
        raise BadInput(f"{directory}: expected a file that has the id of the language {unknown[0]}, found none")
    if {*own} & {*stated}:
        return {}
    return {code: code for code in (listed if listed and not stated else own)} | {"": "<mask>"}


def read_pieces(directory: Path) -> bytes:
    """The serialized SentencePiece model.

    Raises:
        BadInput: there is none.
    """
    if not (directory / PIECES).is_file():
        raise BadInput(f"expected a checkpoint of {KIND}, found no {PIECES} in {directory}")
    return read_bytes(directory / PIECES)


def default_languages(directory: Path) -> dict[str, str]:
    """The languages that tokenizer_config.json sets, as arguments of `Tokenizer.for_languages`."""
    said = checkpoint.read_if_there(directory / "tokenizer_config.json")
    found = {"source_language": said.get("src_lang"), "target_language": said.get("tgt_lang")}
    return {name: code for name, code in found.items() if isinstance(code, str) and code}


def search_options(directory: Path) -> dict[str, Any]:
    """A checkpoint's options of the search that mean the same here; max_length there counts the language, too."""
    options = checkpoint.search_options(directory, _read_settings(directory))
    if "max_length" in options:
        options["max_length"] -= 1
    return {name: value for name, value in options.items() if value}


def _read_settings(directory: Path) -> dict[str, Any]:
    if not (directory / "config.json").is_file():
        raise BadInput(f"expected a checkpoint of {KIND}, found no config.json in {directory}")
    return read_json(directory / "config.json")


def _size(directory: Path) -> int:
    """The number of rows of the checkpoint's embeddings."""
    size, most = _read_settings(directory).get("vocab_size", 128112), checkpoint.most_symbols(directory)
    if type(size) is not int or not 0 < size <= most:
        file = directory / "config.json"
        raise BadInput(f"{file}: vocab_size: expected a number up to {most:,}, got {str(size)[:99]!r}")
    return size


def _unused(name: str, names: dict[str, int]) -> str:
    """A name for a symbol that is ours alone."""
    while name in names:
        name = f"<{name}>"
    return name


def _config_of(settings: dict[str, Any]) -> M2M100Config:
    # Missing values are the defaults of transformers.M2M100Config, which writes only what differs.
    settings = {"activation_function": "relu"} | settings
    allowed = {
        "model_type": ("m2m_100",),
        "activation_function": ACTIVATIONS,
        "tie_word_embeddings": (True,),
    }
    check_settings(settings, allowed)
    padding = settings.get("pad_token_id", CONTROL_IDS["pad_token_id"])
    values = checkpoint.sizes_of(settings) | {
        "attention_dropout": settings.get("attention_dropout", 0.1),
        "vocab_size": settings.get("vocab_size", 128112),
        "activation": settings["activation_function"],
        "scale_embedding": settings.get("scale_embedding", True),
        "first_position": padding + 1,
    }
    return made_of(M2M100Config, values)
