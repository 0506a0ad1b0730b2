"""Weights of built models: copies in another dtype, LoRA adapters, frozen ones."""

import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput

Adapter = tuple[keras.Variable, keras.Variable, keras.Variable, float]


def check_finite(weights: Iterable[keras.Variable], where: str = "") -> None:
    """Raises BadInput if a weight has a NaN or an infinity. `where` begins the message."""
    for weight in weights:
        if not (finite := np.isfinite(ops.convert_to_numpy(weight))).all():
            count = f"{finite.size - np.count_nonzero(finite):,} of {finite.size:,}"
            raise BadInput(f"{where}{weight.path}: expected finite weights, got NaN or infinity in {count}")


def copy_weights(model: keras.Model, source: keras.Model) -> None:
    """Copies the weights of `source` into a built model of the same configuration, converted to the model's dtype.

    LoRA adapters are added to the matrices that they adapt. Raises `BadInput` if `source` has 8-bit weights, ours or
    Keras's own, whose rounding cannot be undone, or if the two models have different weights.
    """
    dtype = model.dtype_policy.name
    if {dtype, source.dtype_policy.name} != {"int8"} and any(weight.dtype == "int8" for weight in source.weights):
        raise BadInput(f"expected a model in another dtype than int8 to convert to {dtype}, got weights of 8 bits")
    # Adapters become part of their matrices, W + scale * A B, and their factors have no counterpart in `model`.
    changes, factors = {}, set()
    for matrix, a, b, scale in adapters(source):
        changes[id(matrix)] = scale * ops.convert_to_numpy(ops.matmul(a, b))
        factors |= {id(a), id(b)}
    # Match weights by their layer's position, not by name: Keras numbers the names of unnamed layers.
    for layer, other in itertools.zip_longest(model._flatten_layers(), source._flatten_layers()):
        new, old = (
            [] if each is None else each._trainable_variables + each._non_trainable_variables for each in (layer, other)
        )
        old = [weight for weight in old if id(weight) not in factors]
        values = [np.asarray(ops.convert_to_numpy(weight)) + changes.get(id(weight), 0) for weight in old]
        # An 8-bit layer makes its integers and scales from a float layer's weights.
        if hasattr(layer, "rounded") and type(layer) is not type(other):
            values = layer.rounded(dict(zip([weight.name for weight in old], values, strict=True)))
        if (expected := [tuple(weight.shape) for weight in new]) != (got := [value.shape for value in values]):
            raise BadInput(
                f"{(other or layer).path}: expected weights of shapes {expected}, as in a new model of this "
                f"configuration, got {got}. Make all layers from the configuration"
            )
        for weight, value in zip(new, values, strict=True):
            weight.assign(value)


def adapter_of(layer: keras.layers.Layer) -> Adapter | None:
    """Returns a layer's adapter: the matrix, two factors, and the scale of their product, or `None` without LoRA."""
    if not getattr(layer, "lora_enabled", False):
        return None
    name = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
    a, b = (getattr(layer, f"lora_{name}_{side}") for side in "ab")
    return getattr(layer, f"_{name}"), a, b, layer.lora_alpha / layer.lora_rank


def adapters(model: keras.Model) -> Iterator[Adapter]:
    """Yields the adapters of a model."""
    return filter(None, map(adapter_of, model._flatten_layers()))


def wake_adapters(model: keras.Model) -> None:
    """Re-initializes the first factor of each adapter after loading a file."""
    # Keras adds the adapter's product to the matrix in a file. Loading leaves both factors 0, where neither learns.
    for _, a, _, _ in adapters(model):
        a.assign(keras.initializers.HeUniform()(a.shape))


def frozen_weights(model: keras.Model) -> list[str]:
    """Returns the names of frozen layers and weights of a built model, for `freeze`.

    A matrix with an adapter counts as trainable if the adapter is.
    """
    # A layer that is frozen as a whole is named once, which keeps a run's config.json short.
    factors = {id(factor) for _, a, b, _ in adapters(model) for factor in (a, b)}
    adapted = {id(matrix) for matrix, a, b, _ in adapters(model) if a.trainable or b.trainable}
    frozen: dict[str, dict[str, bool]] = {}  # {layer: {weight: is frozen}}
    for name, weight in _by_name(model).items():
        if id(weight) not in factors:
            is_frozen = not weight.trainable and id(weight) not in adapted
            frozen.setdefault(name.partition("/")[0], {})[name] = is_frozen
    return [
        part
        for layer, weights in frozen.items()
        for part in ([layer] if all(weights.values()) else [name for name in weights if weights[name]])
    ]


def freeze(model: keras.Model, parts: Iterable[str]) -> None:
    """Freezes layers and weights of a built model. Raises `BadInput` if it has none of such a name."""
    weights = _by_name(model)
    for part in parts:
        matches = [weight for name, weight in weights.items() if f"{name}/".startswith(f"{part}/")]
        if not matches:
            layers = ", ".join(dict.fromkeys(name.partition("/")[0] for name in weights))
            raise BadInput(f"frozen: expected layers or weights of the model, in {layers}; got {part!r}")
        for weight in matches:
            weight.trainable = False


def _by_name(model: keras.Model) -> dict[str, keras.Variable]:
    # Without the model's own name, which Keras numbers: the second model of a process is "transformer_1".
    scope, names = posixpath.commonpath([variable.path for variable in model.weights]), automatic_names(model)
    paths = {posixpath.relpath(variable.path, scope): variable for variable in model.weights}
    return {"/".join(names.get(part, part) for part in path.split("/")): paths[path] for path in paths}


def automatic_names(model: keras.Model) -> dict[str, str]:
    """Returns the names of layers that Keras made, with those that they have in a new process: dense_7 is dense there,
    if it is the first of its kind."""
    kinds: dict[str, list[str]] = {}
    for layer in model._flatten_layers():
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", re.sub(r"\W", "", type(layer).__name__))
        if re.fullmatch(rf"{words.lower()}(_[0-9]+)?", layer.name):
            kinds.setdefault(words.lower(), []).append(layer.name)
    names = dict[str, str]()
    for kind, made in kinds.items():
        numbers = sorted({int(name.removeprefix(kind).removeprefix("_") or 0) for name in made})
        for i, number in enumerate(numbers):
            names[f"{kind}_{number}" if number else kind] = f"{kind}_{i}" if i else kind
    return names
