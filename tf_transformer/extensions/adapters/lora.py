"""LoRA (Hu et al. 2021) for any Keras model: two small factors are trained for each chosen matrix."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.models.weights import adapter_of, adapters
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
        BadInput: If a name matches no such layer, or the model has adapters.

    Examples:
        >>> tt.enable_lora(model, rank=4)
        >>> model.compile("adam", loss)
        >>> model.fit(x, y)
        >>> tt.save_adapter(model, "mine.npz")
    """
    if any(adapters(model)):
        raise BadInput("model: expected no LoRA adapters, got some. Call merge_lora and reload the model")
    able = [layer for layer in model._flatten_layers() if hasattr(layer, "enable_lora")]
    names = dict.fromkeys(layer.name for layer in able)
    if not layers or not names.keys() >= set(layers):
        known = ", ".join(names) or "none that LoRA can adapt"
        raise BadInput(f"layers: expected names among {known}; got {', '.join(layers) or 'none'}")
    for weight in model.weights:
        weight.trainable = False
    for layer in able:
        if layer.name in layers:
            layer.enable_lora(rank)


@checked
def save_adapter(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes the adapters of a model to a NumPy `.npz` file.

    Raises:
        BadInput: If the model has no adapters.
    """
    arrays: dict[str, Any] = {}
    for i, layer in enumerate(model._flatten_layers()):
        if adapter := adapter_of(layer):
            _, a, b, _ = adapter
            arrays |= {f"{i}.a": _array(a), f"{i}.b": _array(b), f"{i}.alpha": np.float32(layer.lora_alpha)}
    if not arrays:
        raise BadInput("model: expected one with LoRA adapters, got none. Call enable_lora first")
    with new_file(user_path(path)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


@checked
def load_adapter(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Adds the adapters of a file to a built model. Its other weights must be those that the adapters were trained on.

    Adapters of the same rank replace those of the model.

    Raises:
        BadInput: If the file holds something else, or adapters that do not fit the model. The model is unchanged.
        FileNotFoundError: If `path` does not exist.
    """
    arrays, layers = read_npz(user_path(path)), list(model._flatten_layers())
    numbers = sorted({int(name.partition(".")[0]) for name in arrays if name.partition(".")[0].isdecimal()})
    if not numbers or {f"{i}.{part}" for i in numbers for part in ("a", "b", "alpha")} != arrays.keys():
        raise BadInput(f"{path}: expected a file of save_adapter, got arrays named {', '.join(list(arrays)[:3])}")
    parts = {i: [arrays[f"{i}.{part}"] for part in ("a", "b", "alpha")] for i in numbers}
    for i, (a, b, alpha) in parts.items():
        sound = all(array.dtype.kind == "f" and np.isfinite(array).all() for array in (a, b, alpha))
        if not sound or alpha.ndim or min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[0]:
            raise BadInput(f"{path}: expected two finite factors and their alpha for layer {i}, got something else")
        layer = layers[i] if i < len(layers) and hasattr(layers[i], "enable_lora") else None
        matrix = getattr(layer, "_kernel", getattr(layer, "_embeddings", None))
        shape, rank = (*a.shape[:-1], *b.shape[1:]), a.shape[-1]
        if layer is None or matrix is None or shape != tuple(matrix.shape) or (layer.lora_rank or rank) != rank:
            got = "none" if matrix is None else f"{tuple(matrix.shape)}, rank {getattr(layer, 'lora_rank', None)}"
            raise BadInput(f"{path}: expected a matrix of shape {shape} for rank {rank} in layer {i}, got {got}")
    for weight in model.weights:
        weight.trainable = False
    for i, (a, b, alpha) in parts.items():
        if not layers[i].lora_enabled:
            layers[i].enable_lora(a.shape[-1], float(alpha))
        _, *factors, _ = adapter_of(layers[i])  # type: ignore[misc]
        for factor, value in zip(factors, (a, b), strict=True):
            factor.trainable = True
            factor.assign(value)


def merge_lora(model: keras.Model) -> None:
    """Adds the adapters to the matrices of a model, for an export. The outputs are unchanged.

    The adapters become zero. `enable_lora` needs a new model.

    Raises:
        BadInput: If a matrix holds integers. The model is unchanged.
    """
    for matrix, *_ in adapters(model):
        if keras.backend.is_int_dtype(matrix.dtype):
            action = "Merge before you quantize, or save a .keras file, which merges and rounds."
            raise BadInput(f"model: expected matrices of floats, got {matrix.dtype} in {matrix.path}. {action}")
    for matrix, a, b, scale in adapters(model):
        matrix.assign(matrix + scale * ops.matmul(a, b))
        b.assign(ops.zeros(b.shape, b.dtype))


def _array(variable: keras.Variable) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(variable), "float32")
