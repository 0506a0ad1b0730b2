"""The weights of checkpoints, by the names that `transformers` uses for BART and similar models."""

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
from tf_transformer.utils.lazy import import_extra, lazily
from tf_transformer.utils.reading import check_archive, check_file, check_h5, read_json, reading

tf = lazily("tensorflow", "a model on TensorFlow")
# Each tensor is read when it is used, so that a large model is in memory once, not twice.
Readers = dict[str, Callable[[], np.ndarray]]
ROWS_AT_ONCE = 4_096  # number of rows of an embedding table
NO_SHARE = -30.0  # A bias: e^-30 is 0 in float32, and -30 is a small term in label smoothing.
SINUSOIDS = {
    f"model.{side}.embed_positions.{name}" for side in ("encoder", "decoder") for name in ("weight", "weights")
}


def _read_safetensors(path: Path) -> Readers:
    file = import_extra("safetensors.numpy", "hub", f"{path}: reading it").safe_open(path, framework="numpy")
    return {name: functools.partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118


def _read_index(index: Path, read: Callable[[Path], Readers], same_names: bool = True) -> Readers:
    """Reads weights in several files. An index of TensorFlow's has other names than `read` returns."""
    files = read_json(index)["weight_map"]
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError("expected files by the names of tensors as weight_map")
    readers = Readers()
    for name in sorted(set(files.values())):
        # A path would make this index read files elsewhere.
        if Path(name).name != name:
            raise ValueError(f"expected names of files next to it, got {name}")
        file = check_file(index.with_name(name))
        with reading(file, "weights"):
            readers |= read(file)
    if not same_names:
        return readers
    if missing := files.keys() - readers:
        names = ", ".join(sorted(missing)[:3])
        raise ValueError(f"expected files with all tensors that it names, found none with {names}")
    return {name: readers[name] for name in files}


def _read_h5(path: Path) -> Readers:
    """Reads weights that TensorFlow saved as "model/.../encoder/layers.0/fc1/kernel:0", of shape [in, out]."""
    import h5py

    leaves = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
    tensors = Readers()
    check_h5(path)

    def take(name: str, item: Any) -> None:
        match = re.search(r"(?:^|/)((encoder|decoder)/.*|model\.shared/[^/]*|final_logits_bias):0$", name)
        if match and isinstance(item, h5py.Dataset):
            *parents, leaf = match[1].replace("model.shared", "shared").split("/")
            name = ".".join([*["model"][: len(parents)], *parents, leaves.get(leaf, leaf)])
            value = item[()]  # now, since the file is closed later
            tensors[name] = functools.partial(np.transpose if leaf == "kernel" else np.asarray, value)

    with h5py.File(path) as file:
        file.visititems(take)
    return tensors


def _read_torch(path: Path) -> Readers:
    without = "without a model.safetensors next to it, which `save_pretrained` writes"
    torch = import_extra("torch", "torch", f"{path}: reading it {without},")
    # Before 2.6 a file could run code, in spite of `weights_only` (CVE-2025-32434).
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise BadInput(f"{path}: expected PyTorch 2.6 or later to read it safely, got {torch.__version__}")
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        check_archive(path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    # Damaged bytes raise these in its unpickler.
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise ValueError("expected tensors by their names, got something else")
    # With a stride of 0, a stored number can stand for many.
    if any(tensor.numel() > path.stat().st_size for tensor in tensors.values()):
        raise ValueError("expected tensors that lie in the file, got one that is larger")
    return {name: functools.partial(lambda tensor: tensor.float().numpy(), tensor) for name, tensor in tensors.items()}


READERS: dict[str, Callable[[Path], Readers]] = dict(
    zip(
        WEIGHTS,
        (
            _read_safetensors,
            lambda index: _read_index(index, _read_safetensors),
            _read_h5,
            lambda index: _read_index(index, _read_h5, same_names=False),
            _read_torch,
            lambda index: _read_index(index, _read_torch),
        ),
        strict=True,
    )
)


def check_rows(x: np.ndarray, rows: list[int]) -> None:
    """Checks that `x` has as many rows as the checkpoint's vocabulary, for `rows` by our ids."""
    size = max(rows) + 1
    if len(x) != size:
        raise BadInput(f"expected a row for each of vocab_size={size} tokens, got {len(x)}")


def layers_of(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the dense layers and normalizations of both stacks: name in `transformers`, layer, and its attention."""
    for side in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(model, f"{side}_layers")):
            name = f"model.{side}.layers.{i}"
            for kind, ours in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
                if (attention := getattr(layer, ours, None)) is not None:
                    for part in ("query", "key", "value"):
                        yield f"{name}.{kind}.{part[0]}_proj", getattr(attention, f"{part}_projection"), attention
                    yield f"{name}.{kind}.out_proj", attention.output_projection, attention
                    yield f"{name}.{kind}_layer_norm", getattr(layer, f"{ours}_norm").norm, None
            yield f"{name}.fc1", layer.feed_forward.hidden, None
            yield f"{name}.fc2", layer.feed_forward.output_projection, None
            yield f"{name}.final_layer_norm", layer.feed_forward_norm.norm, None
        if model.config.norm_first:
            yield f"model.{side}.layer_norm", getattr(model, f"{side}_norm"), None


class Assignment:
    """Assigns a checkpoint's tensors to a model's variables, each once."""

    def __init__(self, tensors: Readers) -> None:
        self.left = dict(tensors)

    def take(self, name: str) -> np.ndarray:
        """Reads a tensor, which must exist."""
        if name not in self.left:
            raise BadInput(f"expected a tensor {name}, found none")
        return self.left.pop(name)()

    def layers(self, model: Transformer) -> None:
        """Assigns the weights of encoder and decoder."""
        for name, layer, _ in layers_of(model):
            is_norm = isinstance(layer, keras.layers.LayerNormalization)
            variables = (layer.gamma, layer.beta) if is_norm else (layer.kernel, layer.bias)
            for leaf, variable in zip(("weight", "bias"), variables, strict=True):
                # Keras's kernels are [in, out], PyTorch's [out, in].
                self.assign(variable, f"{name}.{leaf}", self.take(f"{name}.{leaf}").T)

    def assign(self, variable: keras.Variable, name: str, value: np.ndarray) -> None:
        """Assigns a tensor, which must have the variable's shape."""
        if value.shape != variable.shape:
            raise BadInput(f"{name}: expected shape {tuple(variable.shape)} (as used here), got {value.shape}")
        variable.assign(np.asarray(value, "float32"))

    def table(self, variable: keras.Variable, names: list[str], rows: list[int]) -> None:
        """Assigns rows of an embedding table that the file has under one or several of these names."""
        first, *others = [name for name in names if name in self.left] or names[:1]
        table = self.take(first)
        check_rows(table, rows)
        if table.shape[1:] != variable.shape[1:]:
            raise BadInput(f"{first}: expected {variable.shape[1]} numbers a row, got shape {table.shape}")
        for name in others:
            if not np.array_equal(self.take(name), table):
                raise BadInput(f"{name}: expected the values of {first}, got others")
        # TensorFlow assigns rows of a variable on one device in place. Elsewhere, a reordered copy takes memory, too.
        if keras.backend.backend() != "tensorflow" or isinstance(variable.value, tf.distribute.DistributedValues):
            variable.assign(np.asarray(table[rows], "float32"))
            return
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = np.asarray(table[rows[start : start + ROWS_AT_ONCE]], "float32")
            # `variable.value[start:stop].assign(block)` would read the variable first, and so copy it.
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=variable.value.handle, begin=[start], end=[start + len(block)], strides=[1], value=block
            )


def tensors_of(model: Transformer) -> dict[str, np.ndarray]:
    """Returns the weights of encoder and decoder in float32, by their names in `transformers`.

    Missing biases become zeros. Heads that are narrower than d_model / num_heads are padded with zeros, and queries
    multiplied to compensate for the other divisor of the scores.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, layer, attention in layers_of(model):
        if isinstance(layer, keras.layers.LayerNormalization):
            weight, bias = float32(layer.gamma), float32(layer.beta)
        else:
            weight = float32(layer.kernel).T
            bias = float32(layer.bias) if layer.use_bias else np.zeros(layer.units, "float32")
        # In `transformers` all heads have d_model / num_heads numbers, and scores are divided by the root of that.
        if attention is not None:
            heads, output = attention.num_heads, attention.output_projection
            width, rest = divmod(output.units, heads)
            d_k, d_v = attention.query_projection.units // heads, attention.value_projection.units // heads
            if rest or max(d_k, d_v) > width:
                raise BadInput(
                    f"{attention.path}: expected heads of at most d_model / num_heads={width} numbers for "
                    f"`transformers`, got num_heads={heads}, d_k={d_k}, d_v={d_v}"
                )
            if layer is output:
                weight = widen(weight.T, heads, width).T
            else:
                weight, bias = widen(weight, heads, width), widen(bias, heads, width)
            if layer is attention.query_projection:
                weight, bias = weight * (width / d_k) ** 0.5, bias * (width / d_k) ** 0.5
        tensors |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return tensors


def float32(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable), "float32")


def widen(weight: np.ndarray, num_heads: int, width: int) -> np.ndarray:
    """Pads weights [h * d_k, ...] to [h * width, ...], with zeros that change neither logits nor outputs."""
    heads = weight.reshape(num_heads, -1, *weight.shape[1:])
    padding = [(0, 0), (0, width - heads.shape[1]), *[(0, 0)] * (weight.ndim - 1)]
    return np.pad(heads, padding).reshape(num_heads * width, *weight.shape[1:])
