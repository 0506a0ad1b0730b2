"""Packages that only an extra of this one brings."""

import importlib
from typing import Any

from tf_transformer.utils.values import BadInput


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of a package that may be missing.

    Args:
        module: its name, such as "safetensors.numpy".
        extra: the extra of setup.cfg that brings the package.
        purpose: what takes the package, the beginning of the error.

    Raises:
        BadInput: it cannot be imported. The command in the message works in a clone and without one: pip adds to the
            package that is installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise BadInput(f'{purpose} takes {package}: pip install "tf-transformer[{extra}]" ({error})') from error
