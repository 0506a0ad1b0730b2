"""Imports of packages that only an extra of this package installs."""

import importlib
from typing import Any

from tf_transformer.utils.values import BadInput


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Imports a module of a package that the extra `extra` of setup.cfg installs, for `purpose`.

    If it is missing, `BadInput` names a pip command that works with and without a clone of the repository.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise BadInput(f'{purpose} takes {package}: pip install "tf-transformer[{extra}]" ({error})') from error
