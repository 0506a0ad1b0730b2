"""Attention Is All You Need (Vaswani et al. 2017) on TensorFlow and Keras 3.

`import tf_transformer` loads neither Keras nor TensorFlow: a name's module is imported at first use. So programs show
their help at once, and layers, model and training work without TensorFlow.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

from tf_transformer import registry
from tf_transformer.utils.terminal import quiet_import

# The modules of public names. __init__.pyi is the only list, so type checkers and this module agree.
_HOMES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = list(_HOMES)

# Paths and not objects, so that a module is imported only when its name is used.
registry.core |= {
    "engines": {
        "savedmodel": "tf_transformer.inference.loading:OPENS_SAVED_MODEL",
        "run": "tf_transformer.training.opening:OPENS_RUN",
    },
    "formats": {"savedmodel": "tf_transformer.serving.formats:SAVED_MODEL"},
    "families": {"transformer": "tf_transformer.models.families:PAPER"},
    "tasks": {"translation": "tf_transformer.training.tasks:TRANSLATION"},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with quiet_import():
        home = importlib.import_module(_HOMES[name])
        value = vars(home)[name] if name in vars(home) else importlib.import_module(f"{_HOMES[name]}.{name}")
        globals()[name] = value
        _register()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    """Registers all classes with Keras, if it is loaded, since .keras files load only registered classes."""
    if "keras" in sys.modules:
        for module in ("layers.int8", "models.transformer", "training.losses", "training.optimizer"):
            importlib.import_module(f"{__name__}.{module}")
        # Extensions may be missing, and few files need them.
        importlib.import_module(f"{__name__}.models.keras_files").register_extensions()


_register()
