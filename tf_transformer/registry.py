"""The registry of engines, formats, families, tasks, commands and checks, which other distributions can extend.

Each is an object with a name, whose module is imported at first use. The package lists those of the core, and
extensions/entry_points.txt those of its extensions. Another distribution adds objects by entry points, for example in
its setup.cfg:

    [options.entry_points]
    tf_transformer.formats =
        mine = my_package.formats:MINE

A name belongs to one of them. If two have it, a lookup raises an error with both.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.values import BadInput

if TYPE_CHECKING:
    from configparser import ConfigParser
    from importlib.metadata import EntryPoint

Kind = Literal["engines", "formats", "families", "tasks", "commands", "checks", "keras_classes"]

# Set by the package: the registry lies below all that it finds, and knows none of it.
core: dict[Kind, dict[str, str]] = {}
EXTENSIONS = Path(__file__).with_name("extensions") / "entry_points.txt"


# Reading the metadata of all installed packages takes longer than a lookup should.
@functools.cache
def _plugged_in(kind: Kind) -> "dict[str, list[EntryPoint]]":
    """Returns the entry points of other distributions by name. A name has several if distributions share it."""
    from importlib import metadata  # takes longer to import than this package

    entries: dict[str, dict[str, EntryPoint]] = {}
    for entry in metadata.entry_points(group=f"tf_transformer.{kind}"):
        entries.setdefault(entry.name, {})[entry.value] = entry
    return {name: list(by_value.values()) for name, by_value in entries.items()}


@functools.cache
def _listed() -> "ConfigParser":
    import configparser

    listed = configparser.ConfigParser()
    listed.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    listed.read(EXTENSIONS, encoding="utf-8")  # reads nothing where extensions/ is missing
    return listed


def _built_in(kind: Kind) -> "dict[str, EntryPoint]":
    """Returns the entry points of this package: the core's, then those of its extensions."""
    from importlib import metadata

    group, paths = f"tf_transformer.{kind}", dict(core.get(kind, {}))
    paths |= dict(_listed()[group]) if _listed().has_section(group) else {}
    return {name: metadata.EntryPoint(name, path, group) for name, path in paths.items()}


def is_plugged_in(kind: Kind, name: str) -> bool:
    """Returns whether another distribution has the object with this name."""
    return name in _plugged_in(kind)


def names(kind: Kind) -> list[str]:
    """Returns the names of one kind: those of other distributions, then the core's, then those of extensions."""
    return [*dict.fromkeys([*_plugged_in(kind), *_built_in(kind)])]


def find(kind: Kind, name: str) -> Any:
    """Imports the object with this name.

    Raises:
        BadInput: If the name does not exist, belongs to several distributions, or cannot be imported.
    """
    option = {"families": "family"}.get(kind, kind.removesuffix("s"))
    entries, ours = _plugged_in(kind).get(name, []), _built_in(kind).get(name)
    # Which of two is meant depends on the order of installation, so neither is taken.
    if len(entries) > 1 or (entries and ours):
        owners = [entry.dist.name if entry.dist else entry.value for entry in entries]
        found = " and ".join([*owners, *(["tf-transformer"] if ours else [])])
        raise BadInput(f"{option}: expected one package with {name!r}, got {found}. Uninstall {owners[0]}.")
    if entries:
        try:
            return entries[0].load()
        except (ImportError, AttributeError) as error:
            value = entries[0].value
            raise BadInput(f"{option}: cannot load {name!r} from {value}: {error}. Reinstall it.") from error
    if not ours:
        raise BadInput(f"{option}: expected one of {', '.join(names(kind))}, got {name!r}")
    with quiet_import():
        return ours.load()


def everything(kind: Kind) -> dict[str, Any]:
    """Returns all objects of one kind by name, in the order of `names`."""
    return {name: find(kind, name) for name in names(kind)}
