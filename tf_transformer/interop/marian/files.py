"""Reads a MarianMT checkpoint, written by Hugging Face's `transformers` or by Marian itself (`native`):
vocabulary, settings, weights."""

import dataclasses
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.extras import import_extra
from tf_transformer.files import user_path
from tf_transformer.interop.hub import INDEX
from tf_transformer.interop.marian import native
from tf_transformer.interop.marian.model import ACTIVATIONS, CONTROLS, MarianConfig, MarianTransformer
from tf_transformer.reading import check_archive, check_file, check_h5, made_of, read_json, reading
from tf_transformer.text.search_options import SEARCH_OPTIONS

MOST_SYMBOLS = 2**24  # of a vocabulary without weights
NO_SHARE = -30.0  # a bias: e^-30 is no share in float32, and -30 is a small term in label smoothing


def load_marian(directory: str | Path) -> MarianTransformer:
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
        config.check_stored(sum(tensor.nbytes for tensor in tensors.values()))
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from error
    target = read_vocabulary(directory)
    source = target if _shared(settings) else read_vocabulary(directory, "source")
    own = config.source_vocab_size and len(source.rows)
    model = MarianTransformer(dataclasses.replace(config, vocab_size=len(target.rows), source_vocab_size=own))
    model.build()
    try:
        _assign(model, tensors, source.rows, target.rows)
    except BadInput as error:
        raise BadInput(f"{weights_file}: {error}") from error
    return model


class Vocabulary(NamedTuple):
    """A checkpoint's vocabulary in the order of our ids."""

    pieces: list[str]  # by our id; "" where the checkpoint's vocabulary has none
    rows: list[int]  # by our id, the checkpoint's own


def read_vocabulary(directory: str | Path, side: str = "target") -> Vocabulary:
    """Read a vocabulary in our order: padding, start, end, unknown, then the checkpoint's other ids in their order.

    Args:
        directory: the checkpoint's folder.
        side: "source" or "target"; most checkpoints have one vocabulary for both.

    Raises:
        BadInput: the folder has no vocabulary, or the file holds something else.
    """
    directory = Path(directory)
    (settings_file, settings), (ids_file, ids) = _read_settings(directory), _read_ids(directory, side)
    name, most = "vocab_size", _most_symbols(directory)
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
    pad, start, end, unknown = first.values()
    rows = [pad, start, end, unknown, *(id for id in range(size) if id not in (pad, end, unknown))]
    names = {id: piece for piece, id in ids.items()}
    start_piece = "<s>"
    while start_piece in ids:
        start_piece = f"<{start_piece}>"
    pieces = [names.get(id, "") for id in rows]
    pieces[1] = start_piece
    return Vocabulary(pieces, rows)


def search_options(directory: str | Path) -> dict[str, Any]:
    """A checkpoint's options of the search that mean the same here, from generation_config.json, config.json or
    decoder.yml: beam_size, at most a request's, and max_length, which there counts the start symbol, too."""
    directory = Path(directory)
    _, settings = _read_settings(directory)
    if (directory / "generation_config.json").is_file():
        settings |= read_json(directory / "generation_config.json")
    found = {"beam_size": settings.get("num_beams"), "max_length": settings.get("max_length")}
    options = {name: value for name, value in found.items() if type(value) is int and value > 0}
    if "beam_size" in options:
        options["beam_size"] = min(options["beam_size"], SEARCH_OPTIONS["beam_size"].highest)
    if "max_length" in options:
        options["max_length"] -= 1
    return {name: value for name, value in options.items() if value}


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


def has_two_vocabularies(directory: str | Path) -> bool:
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


def _most_symbols(directory: Path) -> int:
    """The most symbols that a vocabulary can have: each has a row in the files of weights, if these are there."""
    weights = [file for pattern in ("*.safetensors", "*.h5", "*.bin", "*.npz") for file in directory.glob(pattern)]
    return sum(check_file(file).stat().st_size for file in weights) or MOST_SYMBOLS


def _read_tensors(directory: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The file of the weights, and the weights by PyTorch's names."""
    if native.is_native(directory):
        return native.read_tensors(directory)
    file = _weights_file(directory)
    with reading(file, "the weights of MarianMT"):
        return file, READERS[file.name](file)


def _weights_file(directory: Path) -> Path:
    for name in READERS:
        if (directory / name).is_file():
            return check_file(directory / name)
    raise BadInput(f"expected a checkpoint of MarianMT, found none of {', '.join(READERS)} in {directory}")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    return import_extra("safetensors.numpy", "marian", f"{path}: reading it").load_file(path)


def _read_several_safetensors(index: Path) -> dict[str, np.ndarray]:
    places: dict[str, str] = read_json(index)["weight_map"]
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise ValueError(f"expected names of files beside it, got {name}")
        file = check_file(index.with_name(name))
        with reading(file, "the weights of MarianMT"):
            tensors |= _read_safetensors(file)
    if missing := places.keys() - tensors:
        raise ValueError(
            f"expected files with all tensors that it names, found none with {', '.join(sorted(missing)[:3])}"
        )
    return {name: tensors[name] for name in places}


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    without = "without a model.safetensors beside it, which MarianMTModel.save_pretrained writes"
    torch = import_extra("torch", "torch", f"{path}: reading it {without},")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):  # before, a file could run code (CVE-2025-32434)
        raise BadInput(f"{path}: expected PyTorch 2.6 or later to read it safely, got {torch.__version__}")
    if zipfile.is_zipfile(path):
        check_archive(path)
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    if any(tensor.numel() > path.stat().st_size for tensor in tensors.values()):  # one number may stand for many
        raise ValueError("expected tensors that lie in the file, got one that is larger")
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


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


READERS: dict[str, Callable[..., Any]] = {
    "model.safetensors": _read_safetensors,
    INDEX: _read_several_safetensors,
    "tf_model.h5": _read_h5,
    "pytorch_model.bin": _read_torch,
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
    for name, allowed in wanted.items():
        if settings.get(name, allowed[0] if name != "model_type" else None) not in allowed:
            raise BadInput(f"{name}: expected {' or '.join(map(repr, allowed))}, got {settings.get(name)!r}")
    size = settings.get("vocab_size", 58101)
    values = {
        "num_layers": settings.get("encoder_layers", 12),
        "d_model": settings.get("d_model", 1024),
        "d_ff": settings.get("encoder_ffn_dim", 4096),
        "num_heads": settings.get("encoder_attention_heads", 16),
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout", 0.0),
        "vocab_size": size if _shared(settings) else settings.get("decoder_vocab_size") or size,
        "num_decoder_layers": settings.get("decoder_layers", 12),
        "num_decoder_heads": settings.get("decoder_attention_heads", 16),
        "decoder_d_ff": settings.get("decoder_ffn_dim", 4096),
        "activation": settings["activation_function"],
        "scale_embedding": settings.get("scale_embedding", False),
        "source_vocab_size": None if _shared(settings) else size,
    }
    return made_of(MarianConfig, values)


def _assign(model: MarianTransformer, tensors: dict[str, np.ndarray], source_rows: list[int], rows: list[int]) -> None:
    """Assign every tensor, with the vocabularies' rows in our order, and leave none over."""
    left = dict(tensors)

    def in_order(x: np.ndarray, rows: list[int] = rows) -> np.ndarray:
        size = max(rows) + 1
        if len(x) != size:
            raise BadInput(f"expected a row for each of vocab_size={size} symbols, got {len(x)}")
        return x[rows]

    def assign(variable: keras.Variable, name: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> None:
        if name not in left:
            raise BadInput(f"expected a tensor {name}, found none")
        value = change(left.pop(name))
        if value.shape != variable.shape:
            raise BadInput(f"{name}: expected shape {tuple(variable.shape)} (as used here), got {value.shape}")
        variable.assign(value.astype("float32"))

    def linear(layer: keras.layers.Layer, name: str) -> None:
        assign(layer.kernel, f"{name}.weight", np.transpose)
        assign(layer.bias, f"{name}.bias")

    def norm(layer: keras.layers.Layer, name: str) -> None:
        assign(layer.norm.gamma, f"{name}.weight")
        assign(layer.norm.beta, f"{name}.bias")

    def attention(layer: keras.layers.Layer, name: str) -> None:
        linear(layer.query_projection, f"{name}.q_proj")
        linear(layer.key_projection, f"{name}.k_proj")
        linear(layer.value_projection, f"{name}.v_proj")
        linear(layer.output_projection, f"{name}.out_proj")

    stacks: dict[str, list[Any]] = {"encoder": model.encoder_layers, "decoder": model.decoder_layers}
    for side, layers in stacks.items():
        for i, layer in enumerate(layers):
            name = f"model.{side}.layers.{i}"
            attention(layer.self_attention, f"{name}.self_attn")
            norm(layer.self_attention_norm, f"{name}.self_attn_layer_norm")
            if side == "decoder":
                attention(layer.cross_attention, f"{name}.encoder_attn")
                norm(layer.cross_attention_norm, f"{name}.encoder_attn_layer_norm")
            linear(layer.feed_forward.hidden, f"{name}.fc1")
            linear(layer.feed_forward.output_projection, f"{name}.fc2")
            norm(layer.feed_forward_norm, f"{name}.final_layer_norm")
    # One matrix; the file has it under one of these names, or under several.
    names = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    if model.source_embedding is not None:
        assign(model.source_embedding.embeddings, names[1], lambda x: in_order(x, source_rows))
        names = names[2:]
    names = [name for name in [*names, "lm_head.weight"] if name in left] or names[:1]
    assign(model.embedding.embeddings, names[0], in_order)
    for name in names[1:]:
        if not np.array_equal(left.pop(name), tensors[names[0]]):
            raise BadInput(f"{name}: expected the values of {names[0]}, got others")
    bias = np.zeros(len(rows), "float32")
    if "final_logits_bias" in left:
        bias = in_order(left.pop("final_logits_bias").ravel())
    bias[:CONTROLS] = NO_SHARE
    model.embedding.logits_bias.assign(bias)
    for side in ("encoder", "decoder"):
        left.pop(f"model.{side}.embed_positions.weight", None)  # sinusoids: nothing learned
    if left:
        raise BadInput(f"expected the tensors of MarianMT, found also {', '.join(sorted(left)[:3])}")
