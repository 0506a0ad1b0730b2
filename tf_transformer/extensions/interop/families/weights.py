"""The weights of a pretrained checkpoint, by the names that `transformers` gives those of BART and its kin: read from a
file and assigned to a model's variables, or collected from them."""

import functools
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.extensions.interop.families.hub import WEIGHTS
from tf_transformer.models.transformer import Transformer
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.reading import check_archive, check_file, check_h5, read_json, reading

# Tensors by name, each read when it is asked for: a large model is in memory once, not twice.
Readers = dict[str, Callable[[], np.ndarray]]
ROWS_AT_ONCE = 4_096  # of a table
NO_SHARE = -30.0  # a bias: e^-30 is no share in float32, and -30 is a small term in label smoothing
SINUSOIDS = {
    f"model.{side}.embed_positions.{name}" for side in ("encoder", "decoder") for name in ("weight", "weights")
}


def read_weights(file: Path, kind: str) -> Readers:
    """The tensors in one of the files of `hub.WEIGHTS`.

    Args:
        file: its path.
        kind: of checkpoint, for messages.

    Raises:
        BadInput: it holds something else.
    """
    with reading(check_file(file), f"the weights of {kind}"):
        return READERS[file.name](file)


def _read_safetensors(path: Path) -> Readers:
    opened = import_extra("safetensors.numpy", "hub", f"{path}: reading it").safe_open(path, framework="numpy")
    return {name: functools.partial(opened.get_tensor, name) for name in opened.keys()}  # noqa: SIM118


def _read_several_safetensors(index: Path) -> Readers:
    places = read_json(index)["weight_map"]
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("expected files by the names of tensors as weight_map")
    readers = Readers()
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise ValueError(f"expected names of files beside it, got {name}")
        file = check_file(index.with_name(name))
        with reading(file, "weights"):
            readers |= _read_safetensors(file)
    if missing := places.keys() - readers:
        raise ValueError(
            f"expected files with all tensors that it names, found none with {', '.join(sorted(missing)[:3])}"
        )
    return {name: readers[name] for name in places}


def _read_h5(path: Path) -> Readers:
    """Weights that a model of TensorFlow saved: "model/.../encoder/layers.0/fc1/kernel:0" [in, out] and so on."""
    import h5py

    leaves = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
    tensors = Readers()
    check_h5(path)

    def take(name: str, item: Any) -> None:
        found = re.search(r"(?:^|/)((encoder|decoder)/.*|model\.shared/[^/]*|final_logits_bias):0$", name)
        if found and isinstance(item, h5py.Dataset):
            *place, leaf = found[1].replace("model.shared", "shared").split("/")
            name = ".".join([*["model"][: len(place)], *place, leaves.get(leaf, leaf)])
            value = item[()]
            tensors[name] = functools.partial(np.transpose if leaf == "kernel" else np.asarray, value)

    with h5py.File(path) as file:
        file.visititems(take)
    return tensors


def _read_torch(path: Path) -> Readers:
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

    return {name: functools.partial(read, name) for name in tensors}


READERS: dict[str, Callable[[Path], Readers]] = dict(
    zip(WEIGHTS, (_read_safetensors, _read_several_safetensors, _read_h5, _read_torch), strict=True)
)


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


class Layout:
    """A walk through a model, which says what name `transformers` gives each variable in BART and its kin.

    Each kin of it does something with a variable and its name, in `assign`.
    """

    def assign(
        self, variable: Any, name: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x
    ) -> None:  # pragma: no cover
        """Take a variable, which becomes the tensor of this name by a change, and the tensor the variable by it."""
        raise NotImplementedError

    def linear(self, layer: keras.layers.Layer, name: str) -> None:
        """A dense layer, whose kernel [in, out] PyTorch has as [out, in]."""
        self.assign(layer.kernel, f"{name}.weight", np.transpose)
        self.assign(layer.bias, f"{name}.bias")

    def norm(self, layer: keras.layers.Layer, name: str) -> None:
        """A layer normalization."""
        self.assign(layer.gamma, f"{name}.weight")
        self.assign(layer.beta, f"{name}.bias")

    def attention(self, layer: keras.layers.Layer, name: str) -> None:
        """The four projections of an attention."""
        self.linear(layer.query_projection, f"{name}.q_proj")
        self.linear(layer.key_projection, f"{name}.k_proj")
        self.linear(layer.value_projection, f"{name}.v_proj")
        self.linear(layer.output_projection, f"{name}.out_proj")

    def stacks(self, model: Transformer) -> None:
        """The layers of encoder and decoder, and the norms after both, if there are."""
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
        if model.config.norm_first:
            self.norm(model.encoder_norm, "model.encoder.layer_norm")
            self.norm(model.decoder_norm, "model.decoder.layer_norm")


class Assignment(Layout):
    """Tensors on their way into a model's variables, by the names of BART and its kin.

    Args:
        tensors: what reads each, by name.
    """

    def __init__(self, tensors: Readers) -> None:
        self.left = dict(tensors)

    def take(self, name: str) -> np.ndarray:
        """A tensor, once.

        Raises:
            BadInput: there is none.
        """
        if name not in self.left:
            raise BadInput(f"expected a tensor {name}, found none")
        return self.left.pop(name)()

    def assign(self, variable: Any, name: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> None:
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

    def check_none_left(self, kind: str) -> None:
        """Check that each tensor has become a variable; sinusoids, with nothing learned, are left.

        Raises:
            BadInput: one has not.
        """
        if left := self.left.keys() - SINUSOIDS:
            raise BadInput(f"expected the tensors of {kind}, found also {', '.join(sorted(left)[:3])}")


class Collection(Layout):
    """A model's variables on their way into a file: tensors in float32, by the names of BART and its kin.

    Biases that the model lacks are zeros. Heads that are narrower than d_model / num_heads have zeros beside them, and
    queries the factor that makes up for the other divisor of the products.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}

    def assign(self, variable: Any, name: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> None:
        self.tensors[name] = change(np.asarray(keras.ops.convert_to_numpy(variable), "float32"))

    def linear(self, layer: keras.layers.Layer, name: str) -> None:
        self.assign(layer.kernel, f"{name}.weight", np.transpose)
        self.assign(layer.bias if layer.use_bias else np.zeros(layer.units), f"{name}.bias")

    def attention(self, layer: keras.layers.Layer, name: str) -> None:
        super().attention(layer, name)
        heads, tensors = layer.num_heads, self.tensors
        width, rest = divmod(layer.output_projection.units, heads)
        d_k, d_v = (part.units // heads for part in (layer.query_projection, layer.value_projection))
        if rest or max(d_k, d_v) > width:
            raise BadInput(
                f"{layer.path}: expected heads of at most d_model / num_heads={width} numbers for `transformers`, got "
                f"num_heads={heads}, d_k={d_k}, d_v={d_v}"
            )
        for part in ("q_proj", "k_proj", "v_proj"):
            for leaf in ("weight", "bias"):
                tensors[f"{name}.{part}.{leaf}"] = widen(tensors[f"{name}.{part}.{leaf}"], heads, width)
        tensors[f"{name}.out_proj.weight"] = widen(tensors[f"{name}.out_proj.weight"].T, heads, width).T
        if d_k < width:
            for leaf in ("weight", "bias"):
                tensors[f"{name}.q_proj.{leaf}"] *= (width / d_k) ** 0.5


def widen(weight: np.ndarray, num_heads: int, width: int) -> np.ndarray:
    """Weights [h * d_k, ...] as [h * width, ...]: after each head zeros, which change neither logits nor output."""
    heads = weight.reshape(num_heads, -1, *weight.shape[1:])
    lacking = [(0, 0), (0, width - heads.shape[1]), *[(0, 0)] * (weight.ndim - 1)]
    return np.pad(heads, lacking).reshape(num_heads * width, *weight.shape[1:])
