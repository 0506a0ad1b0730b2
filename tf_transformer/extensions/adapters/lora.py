"""LoRA (Hu et al. 2021) for any Keras model: two small factors are trained for each chosen matrix."""

import os
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.models.weights import adapter_of, adapters, automatic_names
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
        BadInput: If a name matches no such layer, the model is not built, or it has adapters.

    Examples:
        >>> tt.enable_lora(model, rank=4)
        >>> model.compile("adam", loss)
        >>> model.fit(x, y)
        >>> tt.save_adapter(model, "mine.npz")
    """
    if any(adapters(model)):
        raise BadInput("model: expected no LoRA adapters, got some. Call merge_lora and reload the model")
    if not model.built:
        raise BadInput("model: expected a built model, got one without weights. Call it first")
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
    """Writes the adapters of a model to a NumPy `.npz` file, by the names of the layers that they adapt.

    A name that Keras made is replaced by its place among the layers of its class.

    Raises:
        BadInput: If the model has no adapters.
    """
    arrays: dict[str, Any] = {}
    for place, layer in _by_place(model).items():
        if adapter := adapter_of(layer):
            _, a, b, _ = adapter
            arrays |= {f"{place}.a": _array(a), f"{place}.b": _array(b), f"{place}.alpha": np.float32(layer.lora_alpha)}
    if not arrays:
        raise BadInput("model: expected one with LoRA adapters, got none. Call enable_lora first")
    with new_file(user_path(path)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


@checked
def load_adapter(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Adds the adapters of a file to a built model. Its other weights must be those that the adapters were trained on.

    Adapters of the same rank replace those of the model.

    Raises:
        BadInput: If the file holds something else, or adapters that do not fit the model, such as of layers that it
            does not have, or has more of. The model is unchanged.
        FileNotFoundError: If `path` does not exist.
    """
    arrays = read_npz(user_path(path))
    places = list(dict.fromkeys(name.rpartition(".")[0] for name in arrays))
    if not places or {f"{place}.{part}" for place in places for part in ("a", "b", "alpha")} != arrays.keys():
        raise BadInput(f"{path}: expected a file of save_adapter, got arrays named {', '.join(list(arrays)[:3])}")
    parts = {place: [arrays[f"{place}.{part}"] for part in ("a", "b", "alpha")] for place in places}
    is_former = all(place.isdecimal() for place in places)
    layers = _by_former_number(model, places, path) if is_former else _by_place(model)
    for place, (a, b, alpha) in parts.items():
        sound = all(array.dtype.kind == "f" and np.isfinite(array).all() for array in (a, b, alpha))
        if not sound or alpha.ndim or min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[0]:
            raise BadInput(f"{path}: expected two finite factors and their alpha for layer {place}, got something else")
        layer = layers.get(place)
        matrix = getattr(layer, "_kernel", getattr(layer, "_embeddings", None))
        shape, rank = (*a.shape[:-1], *b.shape[1:]), a.shape[-1]
        if layer is None or matrix is None or shape != tuple(matrix.shape) or (layer.lora_rank or rank) != rank:
            got = "none" if matrix is None else f"{tuple(matrix.shape)}, rank {getattr(layer, 'lora_rank', None)}"
            raise BadInput(f"{path}: expected a matrix of shape {shape} for rank {rank} in layer {place}, got {got}")
    for weight in model.weights:
        weight.trainable = False
    for place, (a, b, alpha) in parts.items():
        if not layers[place].lora_enabled:
            layers[place].enable_lora(a.shape[-1], float(alpha))
        _, *factors, _ = adapter_of(layers[place])  # type: ignore[misc]
        for factor, value in zip(factors, (a, b), strict=True):
            factor.trainable = True
            factor.assign(value)


def _by_place(model: keras.Model) -> dict[str, Any]:
    """Returns the layers of a model that LoRA can adapt, by names that a model that is made again has as well."""
    layers = list(model._flatten_layers())
    # Keras numbers layers without a name as they are made, so a second model has other numbers. Their place among the
    # layers of their kind, such as 1 of 2, finds them again, and shows if there are more of them now.
    automatic = automatic_names(model)
    kinds: dict[str, dict[str, int]] = {}  # {path of a kind of layers: {name: place}}
    paths = []
    for layer in layers:
        if not hasattr(layer, "enable_lora"):
            continue
        path = ""
        for name in (layer.path or layer.name).removeprefix(f"{model.name}/").split("/"):
            kind = f"{path}/{re.sub(r'_[0-9]+$', '', name) if name in automatic else name}"
            places = kinds.setdefault(kind, {})
            if name in automatic:
                kind = f"{kind}#{places.setdefault(name, len(places) + 1)}"
            path = kind
        paths.append((path, layer))
    counts = {f"{kind}#{i}": f"{kind}#{i}of{len(names)}" for kind, names in kinds.items() for i in names.values()}
    by_place: dict[str, Any] = {}
    for path, layer in paths:
        parts = path.split("/")[1:]
        prefixes = ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]
        place = "/".join(counts.get(prefix, prefix).rpartition("/")[2] for prefix in prefixes)
        same = sum(other == place or other.startswith(f"{place}+") for other in by_place)
        by_place[f"{place}+{same}" if same else place] = layer  # layers may share a name
    return by_place


def _by_former_number(model: keras.Model, places: Sequence[str], path: object) -> dict[str, Any]:
    """Returns the layers of a file of an earlier version, whose adapters have the numbers of their layers.

    A model with a layer more has other numbers, which are told apart by the names that `enable_lora` adapts.
    """
    # A `LanguageModel` was no layer then.
    layers = [layer for layer in model._flatten_layers() if not hasattr(layer, "search")]
    numbers = {place: int(place) for place in places}
    found = {place: layers[i] for place, i in numbers.items() if i < len(layers) and hasattr(layers[i], "enable_lora")}
    names = {layer.name for layer in found.values()}
    named = [layer for layer in layers if hasattr(layer, "enable_lora") and layer.name in names]
    attention = {"query", "key", "value", "output"}
    whole = len(found) == len(places) == len(named) and names & attention in (set(), {"query", "value"}, attention)
    if not whole:
        got = f"got {', '.join(sorted(names)) or 'none'}, {len(found)} of {len(named)} layers"
        action = "Load it into the model that it was saved from, with the version that wrote it."
        raise BadInput(f"{path}: expected the layers of a file of an earlier version, {got}. {action}")
    return found


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
