"""Reads a MarianMT checkpoint, written by Hugging Face's `transformers` or by Marian itself (`native`):
vocabulary, settings, weights."""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.base.files import user_path
from tf_transformer.base.reading import check_h5, made_of, read_json, reading
from tf_transformer.config import ACTIVATIONS, BadInput
from tf_transformer.families import checkpoint
from tf_transformer.families.checkpoint import NO_SHARE, Assignment, check_rows, check_settings
from tf_transformer.families.hub import INDEX
from tf_transformer.families.marian import native
from tf_transformer.families.marian.model import CONTROLS, MarianConfig, MarianTransformer

KIND = "MarianMT"  # in messages


def load_marian(directory: str | os.PathLike[str]) -> MarianTransformer:
    """Load a MarianMT checkpoint from its folder.

    Hugging Face's folders have config.json, vocab.json and one of model.safetensors (or several such files, and
    model.safetensors.index.json), tf_model.h5 and pytorch_model.bin. Marian's own folders have decoder.yml, a
    vocabulary and the weights as .npz.

    Raises:
        BadInput: the folder holds something else, or a kind of MarianMT that is not supported.
    """
    directory = user_path(directory)
    file, settings = _read_settings(directory)
    weights_file, tensors = _read_tensors(directory)
    try:
        config = _config_of(settings)
        config.check_stored(checkpoint.size_of_weights(directory))
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from error
    target = read_vocabulary(directory)
    source = target if _shared(settings) else read_vocabulary(directory, "source")
    own = config.source_vocab_size and len(source.rows)
    model = MarianTransformer(dataclasses.replace(config, vocab_size=len(target.rows), source_vocab_size=own))
    model.build()
    with reading(weights_file, f"the weights of {KIND}"):
        _assign(model, tensors, source.rows, target.rows)
    return model


class Vocabulary(NamedTuple):
    """A checkpoint's vocabulary in the order of our ids."""

    pieces: list[str]  # by our id; "" where the checkpoint's vocabulary has none
    rows: list[int]  # by our id, the checkpoint's own


def read_vocabulary(directory: str | os.PathLike[str], side: str = "target") -> Vocabulary:
    """Read a vocabulary in our order: padding, start, end, unknown, then the checkpoint's other ids in their order.

    Args:
        directory: the checkpoint's folder.
        side: "source" or "target"; most checkpoints have one vocabulary for both.

    Raises:
        BadInput: the folder has no vocabulary, or the file holds something else.
    """
    directory = Path(directory)
    (settings_file, settings), (ids_file, ids) = _read_settings(directory), _read_ids(directory, side)
    ids = ids | ({} if native.is_native(directory) else _added(directory, ids, ids_file))
    name, most = "vocab_size", checkpoint.most_symbols(directory)
    if side == "target" and not _shared(settings) and settings.get("decoder_vocab_size"):
        name = "decoder_vocab_size"
    size = settings.get(name, 58101)
    if type(size) is not int or not 0 < size <= most:
        raise BadInput(f"{settings_file}: {name}: expected a number up to {most:,}, got {str(size)[:99]!r}")
    pad = settings.get("pad_token_id", 58100)
    first = {"pad_token_id": pad, "decoder_start_token_id": settings.get("decoder_start_token_id", pad)}
    first |= {"eos_token_id": settings.get("eos_token_id", ids.get("</s>")), "<unk>": ids.get("<unk>")}
    if side == "source" and not _shared(settings):  # the settings are the target's
        first = {"<pad>": ids.get("<pad>"), "<s>": ids.get("<pad>")}
        first |= {name: ids.get(name) for name in ("</s>", "<unk>")}
    for name, id in (ids | first).items():
        if not isinstance(id, int) or not 0 <= id < size:
            file = settings_file if name in settings else ids_file
            raise BadInput(f"{file}: {name}: expected an id below vocab_size={size}, got {id!r}")
    checkpoint.check_ids_differ(directory, ids)
    pad, start, end, unknown = first.values()
    rows = [pad, start, end, unknown, *(id for id in range(size) if id not in (pad, end, unknown))]
    names = {id: piece for piece, id in ids.items()}
    start_piece = "<s>"
    while start_piece in ids:
        start_piece = f"<{start_piece}>"
    pieces = [names.get(id, "") for id in rows]
    pieces[1] = start_piece
    return Vocabulary(pieces, rows)


def search_options(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """A checkpoint's options of the search that mean the same here, from generation_config.json, config.json or
    decoder.yml: beam_size and max_length."""
    directory = Path(directory)
    return checkpoint.search_options(directory, _read_settings(directory)[1])


def _read_settings(directory: Path) -> tuple[Path, dict[str, Any]]:
    """The file of the settings, and the settings by Hugging Face's names."""
    if native.is_native(directory):
        return native.read_settings(directory)
    if not (directory / "config.json").is_file():
        raise BadInput(f"expected a checkpoint of MarianMT, found neither config.json nor decoder.yml in {directory}")
    return directory / "config.json", read_json(directory / "config.json")


def _shared(settings: dict[str, Any]) -> bool:
    """Whether source and target share one matrix of embeddings."""
    return settings.get("share_encoder_decoder_embeddings", True)


def has_two_vocabularies(directory: str | os.PathLike[str]) -> bool:
    """Whether source and target have separate vocabularies, or only separate embeddings."""
    return not _shared(_read_settings(Path(directory))[1])


def _read_ids(directory: Path, side: str) -> tuple[Path, dict[str, Any]]:
    """The file of a side's vocabulary, and its ids by piece."""
    if native.is_native(directory):
        return native.read_ids(directory, side)
    name = "vocab.json"
    if side == "target" and has_two_vocabularies(directory):
        file = directory / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        if settings.get("separate_vocabs", (directory / "target_vocab.json").is_file()):
            name = "target_vocab.json"
    if not (directory / name).is_file():
        raise BadInput(f"expected a checkpoint of MarianMT, found no {name} in {directory}")
    return directory / name, read_json(directory / name)


def _added(directory: Path, ids: Mapping[str, Any], file: Path) -> dict[str, int]:
    """The ids of symbols that were added to a vocabulary, the contents `ids` of `file`.

    Raises:
        BadInput: an id differs from the vocabulary's; or a symbol is one that texts may contain, which is read here
            only if the SentencePiece model knows it.
    """
    found, is_one = dict[str, int](), not has_two_vocabularies(directory)
    for symbol, token in checkpoint.added_tokens(directory).items():
        if symbol in ids:
            if is_one and ids[symbol] != token.id:
                raise BadInput(f"{directory}: {symbol}: expected the id {ids[symbol]} of {file.name}, got {token.id}")
        elif is_one and (token.is_special or re.fullmatch(">>.*<<", symbol)):
            found[symbol] = token.id
        else:
            what = "control symbols and codes such as >>fra<<" if is_one else f"those of {file.name}"
            raise BadInput(f"{directory}: added tokens: expected {what}, got {symbol!r}")
    return found


def _read_tensors(directory: Path) -> tuple[Path, Mapping[str, np.ndarray]]:
    """The file of the weights, and the weights by PyTorch's names."""
    if native.is_native(directory):
        return native.read_tensors(directory)
    return checkpoint.read_tensors(directory, KIND, READERS)


def _read_h5(path: Path) -> dict[str, np.ndarray]:
    """Weights of TFMarianMTModel: "model/.../encoder/layers.0/fc1/kernel:0" [in, out] and so on."""
    import h5py

    leaves = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
    tensors = {}
    check_h5(path)

    def take(name: str, item: Any) -> None:
        found = re.search(r"(?:^|/)((encoder|decoder)/.*|model\.shared/[^/]*|final_logits_bias):0$", name)
        if found and isinstance(item, h5py.Dataset):
            *place, leaf = found[1].replace("model.shared", "shared").split("/")
            name = ".".join([*["model"][: len(place)], *place, leaves.get(leaf, leaf)])
            tensors[name] = np.transpose(item[()]) if leaf == "kernel" else item[()]

    with h5py.File(path) as file:
        file.visititems(take)
    return tensors


READERS = {  # one made by PyTorch comes last, since reading it takes PyTorch
    name: checkpoint.READERS.get(name, _read_h5)
    for name in ("model.safetensors", INDEX, "tf_model.h5", "pytorch_model.bin")
}


def _config_of(settings: dict[str, Any]) -> MarianConfig:
    wanted = {
        "model_type": ("marian",),
        "activation_function": ACTIVATIONS,
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
        "tie_word_embeddings": (True,),
    }
    # Missing values are the defaults of transformers.MarianConfig, which writes only what differs.
    settings = {"activation_function": "gelu"} | settings
    check_settings(settings, wanted)
    size = settings.get("vocab_size", 58101)
    values = checkpoint.sizes_of(settings) | {
        "attention_dropout": settings.get("attention_dropout", 0.0),
        "vocab_size": size if _shared(settings) else settings.get("decoder_vocab_size") or size,
        "activation": settings["activation_function"],
        "scale_embedding": settings.get("scale_embedding", False),
        "source_vocab_size": None if _shared(settings) else size,
    }
    return made_of(MarianConfig, values)


def _assign(
    model: MarianTransformer, tensors: Mapping[str, np.ndarray], source_rows: list[int], rows: list[int]
) -> None:
    """Assign every tensor, with the vocabularies' rows in our order, and leave none over."""
    weights = Assignment(tensors)
    weights.stacks(model)
    # One matrix; the file has it under one of these names, or under several.
    names = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    if model.source_embedding is not None:
        weights.table(model.source_embedding.embeddings, names[1:2], source_rows)
        names = names[2:]
    weights.table(model.embedding.embeddings, [*names, "lm_head.weight"], rows)
    bias = np.zeros(len(rows), "float32")
    if "final_logits_bias" in weights.left:
        biases = weights.take("final_logits_bias").ravel()
        check_rows(biases, rows)
        bias = biases[rows]
    bias[:CONTROLS] = NO_SHARE
    model.embedding.logits_bias.assign(bias)
    weights.check_none_left(KIND)
