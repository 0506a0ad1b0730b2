"""The files of a pretrained checkpoint as Hugging Face's `transformers` writes them, whatever its family: settings and
weights."""

import functools
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_transformer.base.extras import import_extra
from tf_transformer.base.reading import check_archive, check_file, read_json, reading
from tf_transformer.config import BadInput
from tf_transformer.families.hub import INDEX
from tf_transformer.model import Transformer
from tf_transformer.text.search_options import SEARCH_OPTIONS

MOST_SYMBOLS = 2**24  # of a vocabulary without weights
ROWS_AT_ONCE = 4_096  # of a table
NO_SHARE = -30.0  # a bias: e^-30 is no share in float32, and -30 is a small term in label smoothing
SINUSOIDS = {
    f"model.{side}.embed_positions.{name}" for side in ("encoder", "decoder") for name in ("weight", "weights")
}


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name, each read from its file when it is asked for: a large model is in memory once, not twice.

    Args:
        readers: by name, what reads the tensor.
    """

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self.readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self.readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)


def read_tensors(
    directory: Path, kind: str, readers: Mapping[str, Callable[[Path], Mapping[str, np.ndarray]]]
) -> tuple[Path, Mapping[str, np.ndarray]]:
    """The file of a checkpoint's weights, and the weights by PyTorch's names.

    Args:
        directory: the checkpoint's folder.
        kind: of checkpoint, for messages.
        readers: by the file's name, such as `READERS`; the first that is there is read.

    Raises:
        BadInput: there is none, or it holds something else.
    """
    for name, read in readers.items():
        if (directory / name).is_file():
            file = check_file(directory / name)
            with reading(file, f"the weights of {kind}"):
                return file, read(file)
    raise BadInput(f"expected a checkpoint of {kind}, found none of {', '.join(readers)} in {directory}")


def most_symbols(directory: Path) -> int:
    """The most symbols that a vocabulary can have: each has a row in the files of weights, if these are there."""
    return size_of_weights(directory) or MOST_SYMBOLS


def size_of_weights(directory: Path) -> int:
    """The bytes of a folder's files of weights."""
    files = [file for pattern in ("*.safetensors", "*.h5", "*.bin", "*.npz") for file in directory.glob(pattern)]
    return sum(check_file(file).stat().st_size for file in files)


def _read_safetensors(path: Path) -> Tensors:
    opened = import_extra("safetensors.numpy", "hub", f"{path}: reading it").safe_open(path, framework="numpy")
    return Tensors({name: functools.partial(opened.get_tensor, name) for name in opened.keys()})  # noqa: SIM118


def _read_several_safetensors(index: Path) -> Tensors:
    places = read_json(index)["weight_map"]
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("expected files by the names of tensors as weight_map")
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise ValueError(f"expected names of files beside it, got {name}")
        file = check_file(index.with_name(name))
        with reading(file, "weights"):
            readers |= _read_safetensors(file).readers
    if missing := places.keys() - readers:
        raise ValueError(
            f"expected files with all tensors that it names, found none with {', '.join(sorted(missing)[:3])}"
        )
    return Tensors({name: readers[name] for name in places})


def _read_torch(path: Path) -> Tensors:
    without = "without a model.safetensors beside it, which `save_pretrained` writes"
    torch = import_extra("torch", "torch", f"{path}: reading it {without},")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):  # before, a file could run code (CVE-2025-32434)
        raise BadInput(f"{path}: expected PyTorch 2.6 or later to read it safely, got {torch.__version__}")
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        check_archive(path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except (AttributeError, IndexError, TypeError) as error:  # of its unpickler, which damaged bytes lead astray
        raise ValueError(str(error)) from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise ValueError("expected tensors by their names, got something else")
    if any(tensor.numel() > path.stat().st_size for tensor in tensors.values()):  # one number may stand for many
        raise ValueError("expected tensors that lie in the file, got one that is larger")

    def read(name: str) -> np.ndarray:
        return tensors[name].float().numpy()

    return Tensors({name: functools.partial(read, name) for name in tensors})


READERS: Mapping[str, Callable[[Path], Mapping[str, np.ndarray]]] = {
    "model.safetensors": _read_safetensors,
    INDEX: _read_several_safetensors,
    "pytorch_model.bin": _read_torch,
}


class Added(NamedTuple):
    """A symbol that a tokenizer's files number themselves, beside its vocabulary or once more."""

    id: int
    is_special: bool  # a control symbol, not a part of texts


def added_tokens(directory: Path) -> dict[str, Added]:
    """The symbols that a tokenizer's files number, by name: of tokenizer_config.json, tokenizer.json and
    added_tokens.json, those that are there.

    Raises:
        BadInput: a file holds something else, two files differ, or two symbols have one id.
    """
    said = read_if_there(directory / "tokenizer_config.json")
    special, found = set(listed_tokens(directory)), dict[str, Added]()
    for name in ("tokenizer_config.json", "tokenizer.json", "added_tokens.json"):
        with reading(directory / name, "the added tokens of a tokenizer"):
            values = said if name == "tokenizer_config.json" else read_if_there(directory / name)
            listed, decoder = values.get("added_tokens") or [], values.get("added_tokens_decoder") or {}
            if name == "added_tokens.json":
                entries = [(token, id, token in special) for token, id in values.items()]
            elif not (isinstance(listed, list) and isinstance(decoder, dict)):
                raise ValueError("expected a list or an object of symbols")
            elif not all(isinstance(each, dict) for each in (*listed, *decoder.values())):
                raise ValueError("expected an object for each symbol")
            elif name == "tokenizer.json":
                entries = [(each["content"], each["id"], each.get("special")) for each in listed]
            else:
                entries = [(each["content"], int(id), each.get("special")) for id, each in decoder.items()]
            for token, id, is_special in entries:
                if type(token) is not str or type(id) is not int:
                    raise ValueError(f"expected a name and an id, got {token!r} and {id!r}"[:200])
                before = found.setdefault(token, Added(id, is_special is True))
                if before.id != id:
                    raise BadInput(f"{token}: expected one id in all files of a tokenizer, got {before.id} and {id}")
    check_ids_differ(directory, {token: added.id for token, added in found.items()})
    return found


def listed_tokens(directory: Path) -> list[str]:
    """The control symbols that tokenizer_config.json lists, or else special_tokens_map.json; [] if neither does."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = read_if_there(directory / file)
        for name in ("additional_special_tokens", "extra_special_tokens"):
            symbols = settings.get(name)
            if isinstance(symbols, list) and symbols:
                symbols = [each.get("content") if isinstance(each, dict) else each for each in symbols]
                return [each for each in symbols if isinstance(each, str)]
    return []


def read_if_there(file: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if there is no such file."""
    return read_json(file) if file.is_file() else {}


def check_ids_differ(where: Path, ids: Mapping[str, Any]) -> None:
    """Check that each symbol has an id of its own.

    Raises:
        BadInput: two have one.
    """
    names = dict[Any, str]()
    for name, id in ids.items():
        if names.setdefault(id, name) != name:
            raise BadInput(f"{where}: expected an id for each symbol, got {id!r} for {names[id]} and {name}")


def check_settings(settings: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Check settings of config.json; one that is missing has the first of its allowed values, except for the model's
    type.

    Raises:
        BadInput: one has another value.
    """
    for name, values in allowed.items():
        if settings.get(name, None if name == "model_type" else values[0]) not in values:
            raise BadInput(f"{name}: expected {' or '.join(map(repr, values))}, got {settings.get(name)!r}")


def sizes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of encoder and decoder, by field of a configuration. Missing ones are `transformers`' defaults."""
    return {
        "num_layers": settings.get("encoder_layers", 12),
        "d_model": settings.get("d_model", 1024),
        "d_ff": settings.get("encoder_ffn_dim", 4096),
        "num_heads": settings.get("encoder_attention_heads", 16),
        "dropout": settings.get("dropout", 0.1),
        "num_decoder_layers": settings.get("decoder_layers", 12),
        "num_decoder_heads": settings.get("decoder_attention_heads", 16),
        "decoder_d_ff": settings.get("decoder_ffn_dim", 4096),
    }


def search_options(directory: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's options of the search that mean the same here: beam_size, at most a request's, and max_length,
    which there counts the start symbol, too.

    Args:
        directory: the checkpoint's folder; its generation_config.json is read if it is there.
        settings: of its config.json.
    """
    if (directory / "generation_config.json").is_file():
        settings = {**settings, **read_json(directory / "generation_config.json")}
    found = {"beam_size": settings.get("num_beams"), "max_length": settings.get("max_length")}
    options = {name: value for name, value in found.items() if type(value) is int and value > 0}
    if "beam_size" in options:
        options["beam_size"] = min(options["beam_size"], SEARCH_OPTIONS["beam_size"].highest)
    if "max_length" in options:
        options["max_length"] -= 1
    return {name: value for name, value in options.items() if value}


def check_rows(x: np.ndarray, rows: list[int]) -> None:
    """Check that x has these rows, and no others.

    Raises:
        BadInput: it has more or fewer.
    """
    size = max(rows) + 1
    if len(x) != size:
        raise BadInput(f"expected a row for each of vocab_size={size} symbols, got {len(x)}")


def _assign_in_place(variable: keras.Variable, blocks: Iterator[np.ndarray]) -> bool:
    """Write blocks of rows over a variable, so that a table needs no further copies. Whether this backend can."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    if isinstance(variable.value, tf.distribute.DistributedValues):
        return False
    start = 0
    for block in blocks:
        stop = start + len(block)
        # As `variable.value[start:stop].assign(block)`, which reads the variable before, and so has it copied.
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.value.handle, begin=[start], end=[stop], strides=[1], value=block
        )
        start = stop
    return True


class Assignment:
    """Tensors on their way into a model's variables, by the names of BART and its kin.

    Args:
        tensors: by name.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.tensors = tensors
        self.left = set(tensors)

    def take(self, name: str) -> np.ndarray:
        """A tensor, once.

        Raises:
            BadInput: there is none.
        """
        if name not in self.left:
            raise BadInput(f"expected a tensor {name}, found none")
        self.left.remove(name)
        return self.tensors[name]

    def assign(
        self, variable: keras.Variable, name: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x
    ) -> None:
        """Assign a tensor, changed, to a variable.

        Raises:
            BadInput: there is no such tensor, or it has another shape.
        """
        value = change(self.take(name))
        if value.shape != variable.shape:
            raise BadInput(f"{name}: expected shape {tuple(variable.shape)} (as used here), got {value.shape}")
        variable.assign(np.asarray(value, "float32"))

    def table(self, variable: keras.Variable, names: list[str], rows: list[int]) -> None:
        """Assign these rows of a table that the file has under one of these names, or under several.

        Raises:
            BadInput: there is none, it has other rows than these or another width, or several differ.
        """
        first, *others = [name for name in names if name in self.left] or names[:1]
        table = self.take(first)
        check_rows(table, rows)
        if table.shape[1:] != variable.shape[1:]:
            raise BadInput(f"{first}: expected {variable.shape[1]} numbers a row, got shape {table.shape}")
        for name in others:
            if not np.array_equal(self.take(name), table):
                raise BadInput(f"{name}: expected the values of {first}, got others")
        places = range(0, len(rows), ROWS_AT_ONCE)
        blocks = (np.asarray(table[rows[place : place + ROWS_AT_ONCE]], "float32") for place in places)
        if not _assign_in_place(variable, blocks):
            variable.assign(np.concatenate(list(blocks)))

    def linear(self, layer: keras.layers.Layer, name: str) -> None:
        """Assign a dense layer, whose kernel [in, out] PyTorch has as [out, in]."""
        self.assign(layer.kernel, f"{name}.weight", np.transpose)
        self.assign(layer.bias, f"{name}.bias")

    def norm(self, layer: keras.layers.Layer, name: str) -> None:
        """Assign a layer normalization."""
        self.assign(layer.gamma, f"{name}.weight")
        self.assign(layer.beta, f"{name}.bias")

    def attention(self, layer: keras.layers.Layer, name: str) -> None:
        """Assign the four projections of an attention."""
        self.linear(layer.query_projection, f"{name}.q_proj")
        self.linear(layer.key_projection, f"{name}.k_proj")
        self.linear(layer.value_projection, f"{name}.v_proj")
        self.linear(layer.output_projection, f"{name}.out_proj")

    def stacks(self, model: Transformer) -> None:
        """Assign the layers of encoder and decoder."""
        sides: dict[str, list[Any]] = {"encoder": model.encoder_layers, "decoder": model.decoder_layers}
        for side, layers in sides.items():
            for i, layer in enumerate(layers):
                name = f"model.{side}.layers.{i}"
                self.attention(layer.self_attention, f"{name}.self_attn")
                self.norm(layer.self_attention_norm.norm, f"{name}.self_attn_layer_norm")
                if side == "decoder":
                    self.attention(layer.cross_attention, f"{name}.encoder_attn")
                    self.norm(layer.cross_attention_norm.norm, f"{name}.encoder_attn_layer_norm")
                self.linear(layer.feed_forward.hidden, f"{name}.fc1")
                self.linear(layer.feed_forward.output_projection, f"{name}.fc2")
                self.norm(layer.feed_forward_norm.norm, f"{name}.final_layer_norm")

    def check_none_left(self, kind: str) -> None:
        """Check that each tensor has become a variable; sinusoids, with nothing learned, are left.

        Raises:
            BadInput: one has not.
        """
        if left := self.left.difference(SINUSOIDS):
            raise BadInput(f"expected the tensors of {kind}, found also {', '.join(sorted(left)[:3])}")
