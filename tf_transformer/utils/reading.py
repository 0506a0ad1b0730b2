"""Reads files that a stranger may have written. Nothing takes memory or time before its size is checked, and whatever
is wrong with a file is one line."""

import contextlib
import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tf_transformer.utils.values import BadInput, convert

MOST_BYTES = 2**26  # of a file that is read as a whole before it is parsed: JSON, YAML, tokenizers
MOST_NESTED = 50  # of YAML's collections, one in the other
LFS = b"version https://git-lfs.github.com/spec/"
OF_PARSERS = (ArithmeticError, EOFError, KeyError, OSError, RuntimeError, ValueError)  # of Python's errors
Made = TypeVar("Made")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """What a parser raises in this block, about the contents of the file, as `BadInput` in one line.

    Other errors of Python pass, such as MemoryError and TypeError: they are of the machine, or faults of ours. So
    what has another type in a file is refused before it is used, and nothing is built in the block.
    """
    try:
        yield
    except BadInput as error:
        if str(path) in str(error):
            raise
        raise BadInput(f"{path}: {error}") from error
    except Exception as error:  # each library raises its own
        own = type(error).__module__ != "builtins"
        if isinstance(error, FileNotFoundError) or not (own or isinstance(error, OF_PARSERS)):
            raise
        reason = " ".join(str(error).split())[:300]
        reason = f"no {reason} in it" if type(error) is KeyError else reason
        raise BadInput(f"{path}: expected {expected}, got something else: {reason or type(error).__name__}") from error


def check_file(path: str | os.PathLike[str]) -> Path:
    """Check that a file is there, and that it is not a pointer that Git LFS left in its place.

    Raises:
        FileNotFoundError: there is none.
        BadInput: it is a pointer.
    """
    if not (path := Path(path)).is_file():
        raise FileNotFoundError(f"expected a file, found none at {path}")
    with open(path, "rb") as file:
        if file.read(len(LFS)) == LFS:
            raise BadInput(
                f"{path}: expected the file itself, got a pointer of Git LFS; `git lfs pull` fetches the file"
            )
    return path


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The contents of a file of at most `MOST_BYTES`; the errors are those of `check_file`."""
    if (size := check_file(path).stat().st_size) > MOST_BYTES:
        raise BadInput(f"{path}: expected at most {MOST_BYTES:,} bytes, got {size:,}")
    return Path(path).read_bytes()


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file, in UTF-8; the errors are those of `read_bytes`, and `BadInput` for anything else."""
    with reading(path, "a JSON object"):
        value = json.loads(read_bytes(path).decode())
        if not isinstance(value, dict):
            raise ValueError(type(value).__name__)
        return value


def parse_yaml(yaml: Any, text: bytes) -> Any:
    """YAML whose scalars are all strings, numbers, "null" and "yes" included.

    Args:
        yaml: the module, PyYAML's.
        text: of a document without aliases, since ten lines of these can stand for gigabytes.

    Raises:
        ValueError: the text is not YAML, or it uses aliases.
    """
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("expected YAML without aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTED:
                raise ValueError(f"expected YAML nested at most {MOST_NESTED} deep")
        return yaml.load(text, Loader=loader)  # nosec: makes strings, lists and mappings alone
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def check_archive(file: str | os.PathLike[str] | io.BytesIO) -> None:
    """Check that a zip archive's contents are no larger than the archive: stored, not compressed, and each once.

    Raises:
        ValueError: they are larger, or it is no archive.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else os.path.getsize(file)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("expected an archive without compression, since a small one can fill all memory")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("expected an archive of its own size, got one of more")


def read_npz(path: str | os.PathLike[str], names: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those of some names.

    Raises:
        BadInput: it holds something else.
        FileNotFoundError: there is none.
    """
    with reading(path, "arrays of NumPy"):
        check_archive(check_file(path))
        with zipfile.ZipFile(path) as archive:
            return {name: _array(archive.read(f"{name}.npy")) for name in names or _names(archive)}


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _array(content: bytes) -> np.ndarray:
    """An array of the format .npy, of numbers that are there: NumPy's own reader first takes memory for its shape."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    flat = np.frombuffer(content, dtype, math.prod(shape), offset=file.tell())
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def check_h5(path: str | os.PathLike[str]) -> None:
    """Check that all arrays of an HDF5 file lie in it: no external links, and no array larger than the file.

    Raises:
        BadInput: it does not, or it is no such file.
        FileNotFoundError: there is none.
    """
    import h5py

    size, elsewhere = 0, list[str]()

    def look(name: str, item: Any) -> None:
        nonlocal size
        if isinstance(item, h5py.Dataset):
            size += item.nbytes
            elsewhere.extend([name] * bool(item.external or item.is_virtual))
        elif isinstance(item, h5py.ExternalLink):
            elsewhere.append(name)

    with reading(path, "weights in HDF5"), h5py.File(check_file(path)) as file:
        file.visititems(look)
        file.visititems_links(look)
        if elsewhere:
            raise ValueError(f"expected arrays that lie in the file, got {elsewhere[0]}, which does not")
        if size > (most := os.path.getsize(path)):
            raise ValueError(f"expected arrays of at most {most:,} bytes, those of the file, got {size:,}")


def made_of(kind: type[Made], values: dict[str, Any]) -> Made:
    """Build a dataclass, such as a configuration, from a file's values; unknown keys are ignored.

    Raises:
        BadInput: a value has another type or is out of range.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})


def check_kinds(values: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """Values from a JSON file, of which those that have a kind are converted by it.

    Args:
        values: by name.
        kinds: by name an annotation, as for `values.convert`; a value need not be there.

    Raises:
        BadInput: a value is of another kind.
    """
    return values | {name: convert(name, values[name], kind) for name, kind in kinds.items() if name in values}
