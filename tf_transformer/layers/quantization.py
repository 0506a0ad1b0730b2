"""Layers inside layers that `quantize` made integers of, in what Keras saves."""

from collections.abc import Iterator
from typing import Any

import keras


class KeepsQuantized(keras.layers.Layer):
    """A base of layers and models that hold others: what is loaded has integers where what was saved has them.

    Keras's own `get_config` has one policy for all that is inside.
    """

    def get_build_config(self) -> dict[str, Any]:
        quantized = {path: layer.dtype_policy.name for path, layer in self._inside() if layer.quantization_mode}
        return super().get_build_config() | {"quantized": quantized} if quantized else super().get_build_config()

    def build_from_config(self, config: dict[str, Any]) -> None:
        policies = config.get("quantized", {})
        super().build_from_config({name: value for name, value in config.items() if name != "quantized"})
        for path, layer in self._inside():
            if path in policies:
                layer.dtype_policy = policies[path]  # which makes integers of its weights

    def _inside(self) -> Iterator[tuple[str, keras.layers.Layer]]:
        for layer in list(self._flatten_layers(include_self=False)):
            if layer.path:  # built: a dropout never called is not
                yield layer.path.removeprefix(f"{self.path}/"), layer
