"""Readers of untrusted files. They check sizes before they spend memory or time, and errors have one line."""

import contextlib
import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.values import BadInput, convert

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazily("numpy", "an array")  # programs show their help without it

MOST_BYTES = 2**26  # largest JSON, YAML or tokenizer file
LFS = b"version https://git-lfs.github.com/spec/"
OF_PARSERS = (ArithmeticError, EOFError, KeyError, OSError, RuntimeError, ValueError)  # Python's errors of parsers
Made = TypeVar("Made")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """Converts errors of a parser about a file's contents inside the block to `BadInput`.

    MemoryError, TypeError and others of Python's errors pass, since they are the machine's or our faults. So check the
    types of a file's values before you use them, and build nothing inside the block.
    """
    try:
        yield
    except BadInput as error:
        if str(path) in str(error):
            raise
        raise BadInput(f"{path}: {error}") from error
    except Exception as error:
        # Libraries define error classes.
        is_of_file = isinstance(error, OF_PARSERS) or type(error).__module__ != "builtins"
        if isinstance(error, FileNotFoundError) or not is_of_file:
            raise
        reason = " ".join(str(error).split())[:300]
        reason = f"no {reason} in it" if type(error) is KeyError else reason
        raise BadInput(f"{path}: expected {expected}, got something else: {reason or type(error).__name__}") from error


def check_file(path: str | os.PathLike[str]) -> Path:
    """Checks that a file exists and is not a pointer of Git LFS."""
    if not (path := Path(path)).is_file():
        raise FileNotFoundError(f"expected a file, found none at {path}")
    with open(path, "rb") as file:
        if file.read(len(LFS)) == LFS:
            raise BadInput(f"{path}: expected the file itself, got a pointer of Git LFS; `git lfs pull` fetches it")
    return path


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the contents of a file of at most `MOST_BYTES`, after `check_file`."""
    if (size := check_file(path).stat().st_size) > MOST_BYTES:
        raise BadInput(f"{path}: expected at most {MOST_BYTES:,} bytes, got {size:,}")
    return Path(path).read_bytes()


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the object in a JSON file of at most `MOST_BYTES`. Anything else is `BadInput`."""
    with reading(path, "a JSON object"):
        value = json.loads(read_bytes(path).decode())
        json.dumps(value, ensure_ascii=False).encode()  # raises for a lone surrogate, which UTF-8 cannot encode
        if not isinstance(value, dict):
            raise ValueError(type(value).__name__)
        return value


def check_archive(file: str | os.PathLike[str] | io.BytesIO) -> None:
    """Checks that a zip archive's contents are uncompressed and no larger than the archive, or raises `ValueError`."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else os.path.getsize(file)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("expected an archive without compression, since a small one can fill all memory")
    # Several entries may point to the same bytes.
    if (unpacked := sum(entry.file_size for entry in entries)) > size:
        raise ValueError(f"expected an archive of at most {size:,} bytes unpacked, got {unpacked:,}")


def read_npz(path: str | os.PathLike[str], names: Iterable[str] = ()) -> "dict[str, np.ndarray]":
    """Returns the arrays of an .npz file, all or some by name."""
    arrays = {}
    with reading(path, "arrays of NumPy"):
        check_archive(check_file(path))
        with zipfile.ZipFile(path) as archive:
            for name in names or [member.removesuffix(".npy") for member in archive.namelist()]:
                # NumPy's reader allocates the header's shape before it counts the bytes.
                content = archive.read(f"{name}.npy")
                file, form = io.BytesIO(content), np.lib.format
                is_first = form.read_magic(file) == (1, 0)
                header = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
                shape, fortran, dtype = header(file)
                flat = np.frombuffer(content, dtype, math.prod(shape), offset=file.tell())
                arrays[name] = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return arrays


def check_h5(path: str | os.PathLike[str]) -> None:
    """Checks that all arrays of an HDF5 file lie in it: no external links, and no array larger than the file."""
    import h5py

    # A sparse or chunked array may claim any size, and a link any file that this process can read.
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
    """Builds a dataclass, such as a configuration, from a file's values, and ignores unknown keys."""
    values = with_new_names(values, getattr(kind, "RENAMED", {}))
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})


def with_new_names(values: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Renames keys that files of earlier versions have, {old name: new name}."""
    return {names.get(name, name): value for name, value in values.items()}


def check_kinds(values: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """Converts values of a JSON file that have an annotation in `kinds`. Others are unchanged."""
    return values | {name: convert(name, values[name], kind) for name, kind in kinds.items() if name in values}
