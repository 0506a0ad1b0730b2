"""Classes of extensions that a .keras file may name, each imported when a file names it."""

from typing import Any

import keras

from tf_transformer import registry

PACKAGE = "tf_transformer"  # of the names under which our classes are registered with Keras


def register_extensions() -> None:
    """Registers a placeholder with Keras for each such class whose module is not imported yet."""
    for name in registry.names("keras_classes"):
        if keras.saving.get_registered_object(f"{PACKAGE}>{name}") is None:
            # Keras makes an object of a file by `from_config` of the registered class, and does nothing else with it.
            # The module of the real class replaces the placeholder.
            keras.saving.register_keras_serializable(PACKAGE, name)(type(name, (_Placeholder,), {}))


class _Placeholder:
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return registry.find("keras_classes", cls.__name__).from_config(config)

    def get_config(self) -> dict[str, Any]:  # Keras registers no class without it
        raise NotImplementedError
