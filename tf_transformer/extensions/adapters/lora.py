"""LoRA (Hu et al. 2021) for any Keras model: two small factors are trained for each chosen matrix."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.utils.files import new_file, user_path
from tf_transformer.utils.reading import read_npz
from tf_transformer.utils.values import BadInput, Count, checked


@checked
def enable_lora(model: keras.Model, rank: Count = 8, layers: Sequence[str] = ("query", "value")) -> None:
    """Freezes a built model and adds trainable LoRA adapters to some of its matrices.

    Compile the model afterwards, since the trainable weights change.

    Args:
        model: Built Keras model.
        rank: Rank of the adapters.
        layers: Names of the `Dense`, `EinsumDense` and embedding layers to adapt. Attention has `"query"`, `"key"`,
            `"value"` and `"output"`, feed-forward networks have `"hidden"` and `"output"`.

    Raises:
        BadInput: If no layer has such a name, or the model has adapters.

    Examples:
        >>> tt.enable_lora(model, rank=4)
        >>> model.compile("adam", loss)
        >>> model.fit(x, y)
        >>> tt.save_adapter(model, "mine.npz")
    """
    if any(adapted(model)):
        raise BadInput("model: expected one without LoRA adapters, got some. Call merge_lora first")
    able = [layer for layer in model._flatten_layers() if hasattr(layer, "enable_lora")]
    chosen = [layer for layer in able if layer.name in layers]
    if not chosen:
        names = ", ".join(dict.fromkeys(layer.name for layer in able)) or "none that LoRA can adapt"
        raise BadInput(f"layers: expected names among {names}; got {', '.join(layers)}")
    for weight in model.weights:
        weight.trainable = False
    for layer in chosen:
        layer.enable_lora(rank)


def adapted(model: keras.Model) -> Iterator[tuple[int, keras.layers.Layer, str]]:
    """Yields each layer with an adapter: its position in the model, the layer, and the name of its matrix."""
    for i, layer in enumerate(model._flatten_layers()):
        if getattr(layer, "lora_enabled", False):
            yield i, layer, "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"


@checked
def save_adapter(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes the adapters of a model to a file of their own, in NumPy's format `.npz`.

    Raises:
        BadInput: If the model has no adapters.
    """
    arrays: dict[str, Any] = {}
    for i, layer, name in adapted(model):
        arrays[f"{i}.a"], arrays[f"{i}.b"] = (_array(getattr(layer, f"lora_{name}_{side}")) for side in "ab")
        arrays[f"{i}.alpha"] = np.float32(layer.lora_alpha)
    if not arrays:
        raise BadInput("model: expected one with LoRA adapters, got none. Call enable_lora first")
    path = user_path(path)
    with new_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


@checked
def load_adapter(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Adds the adapters of a file to a built model. Its other weights must be those that the adapters were trained on.

    Raises:
        BadInput: If the file holds something else, or the adapters of a model with other layers.
        FileNotFoundError: If there is no such file.
    """
    arrays, layers = read_npz(user_path(path)), list(model._flatten_layers())
    numbers = sorted({int(name.partition(".")[0]) for name in arrays if name.partition(".")[0].isdecimal()})
    if not numbers or {f"{i}.{part}" for i in numbers for part in ("a", "b", "alpha")} != arrays.keys():
        raise BadInput(f"{path}: expected a file of save_adapter, got arrays named {', '.join(list(arrays)[:3])}")
    for i in numbers:
        shape = (*arrays[f"{i}.a"].shape[:-1], *arrays[f"{i}.b"].shape[1:])
        layer = layers[i] if i < len(layers) and hasattr(layers[i], "enable_lora") else None
        matrix = layer and getattr(layer, "_kernel", getattr(layer, "_embeddings", None))
        if matrix is None or shape != tuple(matrix.shape):
            got = "none" if layer is None or matrix is None else f"{layer.path} with {tuple(matrix.shape)}"
            raise BadInput(f"{path}: expected a matrix of shape {shape} in the model's layer {i}, got {got}")
    for weight in model.weights:
        weight.trainable = False
    for i in numbers:
        layer, (a, b) = layers[i], (arrays[f"{i}.{side}"] for side in "ab")
        if not layer.lora_enabled:
            layer.enable_lora(a.shape[-1], float(arrays[f"{i}.alpha"]))
        name = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
        for side, value in (("a", a), ("b", b)):
            getattr(layer, f"lora_{name}_{side}").assign(value)


def merge_lora(model: keras.Model) -> None:
    """Adds the adapters to the matrices of a model, for an export. The outputs stay the same.

    The adapters become zero. `enable_lora` needs a new model.
    """
    for _, layer, name in adapted(model):
        a, b = (getattr(layer, f"lora_{name}_{side}") for side in "ab")
        matrix = getattr(layer, f"_{name}")
        matrix.assign(matrix + layer.lora_alpha / layer.lora_rank * ops.matmul(a, b))
        b.assign(ops.zeros(b.shape, b.dtype))


def _array(variable: keras.Variable) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(variable), "float32")
