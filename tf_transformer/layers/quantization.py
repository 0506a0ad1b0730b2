"""Saving and loading layers that hold quantized layers."""

from collections.abc import Iterator
from typing import Any

import keras


class KeepsQuantized(keras.layers.Layer):
    """A base of layers and models that saves and restores which of the layers inside are quantized.

    Keras's own `get_config` has one dtype policy for all layers inside.
    """

    def get_build_config(self) -> dict[str, Any]:
        quantized = {path: layer.dtype_policy.name for path, layer in self._inside() if layer.quantization_mode}
        return super().get_build_config() | {"quantized": quantized} if quantized else super().get_build_config()

    def build_from_config(self, config: dict[str, Any]) -> None:
        policies = config.get("quantized", {})
        super().build_from_config({name: value for name, value in config.items() if name != "quantized"})
        for path, layer in self._inside():
            if path in policies:
                layer.dtype_policy = policies[path]  # this quantizes its weights

    def _inside(self) -> Iterator[tuple[str, keras.layers.Layer]]:
        for layer in list(self._flatten_layers(include_self=False)):
            if layer.path:  # only built layers have one, so a dropout may have none
                yield layer.path.removeprefix(f"{self.path}/"), layer
