"""Reading of files that torch.save has written, without running anything that they contain."""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import threading
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from collections.abc import Iterator

# modules whose objects become records without behaviour: enumerations in args, loss scalers, generator states
_RECORDS = ("megatron.", "deepspeed.", "numpy.", "_io.", "signal.", "types.", "pathlib.")
_BY_NAME = "builtins.getattr"
_MOST_RECORDS = 50  # most classes of _RECORDS in one file; torch.load is called once more for each
# the class or module that torch.load refuses, in its message
_REFUSED = re.compile(r"GLOBAL ([\w.]+)|``([\w.]+)`` must be imported")
_CALL = "Trying to call reduce for unrecognized function"
_ZIP = b"PK\x03\x04"
# first bytes in the format of before torch 1.6: a pickle of torch.serialization.MAGIC_NUMBER
_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_TENSOR = re.compile(r"/data/\d+$")  # name of a record that has a tensor's numbers
_BLOCK = 1 << 20
# a zip entry's header before its name, extra field and data: its last two numbers are the lengths of those two
_LOCAL_HEADER = struct.Struct("<26xHH")
_ALLOWING = threading.Lock()  # held while the classes are set that torch.load makes: torch keeps them for the process


class _Record:
    """An object of a class that is not imported: its arguments and its state."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


def _member(kind: Any, name: str) -> _Record:
    """Return a record of a member of an enumeration, for which Python 3.11.0 to 3.11.3 writes getattr."""
    if not (isinstance(kind, type) and issubclass(kind, _Record)):
        msg = f"GLOBAL {_BY_NAME}"  # as torch refuses it, for `_REFUSED`
        raise pickle.UnpicklingError(msg)
    return kind(name)


def read(path: Path) -> Any:
    """Return what a file holds; tensors are mapped from it. CheckpointError: objects that could run code; DamageError.

    What is not of a tensor is verified by the file's own checksums, tensors when they are read (`Record`). Of classes
    only argparse.Namespace and torch's own of tensors are made. The format of before torch 1.6 is read whole.
    """
    _require_file(path)
    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP)) == _ZIP
    return _checked(path, path, is_zip=is_zip)


def read_part(part: IO[bytes], path: Path) -> Any:
    """Return what a part of a file holds, which is itself a file of torch.save; `path` is for errors."""
    return _checked(part, path, is_zip=True)


def require_readable(path: Path) -> bool:
    """Require that a file of torch.save has the content that its checksums tell; return whether it has any.

    None of its objects is made. In the format of before torch 1.6, without checksums, only the beginning tells.
    """
    _require_file(path)
    with path.open("rb") as file:
        begin = file.read(len(_BEFORE_ZIP))
    if begin == _BEFORE_ZIP:
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            _require_uncompressed(archive)
            entries = archive.infolist()
            for entry in entries:
                _verify(archive, entry)
            return any(entry.CRC for entry in entries)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise _damaged(path, error) from error


def data_place(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Return the place of an entry's data in a zip file, in bytes; struct.error: the file ends before it."""
    file.seek(entry.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return entry.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def _checked(source: Path | IO[bytes], path: Path, *, is_zip: bool) -> Any:
    try:
        if is_zip:
            _require_sound(source)
        return _load(source, path, is_zip=is_zip)
    except CheckpointError:
        raise
    except Exception as error:  # torch's reader raises anything for damaged bytes, struct.error and AssertionError too
        raise _damaged(path, error) from error


def _load(source: Path | IO[bytes], path: Path, *, is_zip: bool) -> Any:
    """Load, and again for each class of _RECORDS that is met."""
    records: dict[str, type[_Record]] = {}
    while True:
        if not isinstance(source, Path):
            source.seek(0)
        try:
            with _ALLOWING, _allowing(records):
                return torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip and source is path)
        except pickle.UnpicklingError as error:
            name = _refused(error)
            if name is None:
                raise _damaged(path, error) from error
            if not name.startswith(_RECORDS) or name in records or len(records) == _MOST_RECORDS:
                msg = (
                    f"{path} holds {name[:200]}, which could run code. Nothing was executed.\n"
                    "Save the file again without it: only tensors, plain values and argparse.Namespace are read."
                )
                raise CheckpointError(msg) from error
            # A class of its own for each name, since torch.load keeps one name for a class.
            records[name] = type(name.rpartition(".")[2], (_Record,), {})


def _refused(error: pickle.UnpicklingError) -> str | None:
    """Return what torch.load refuses to make or to call; None for another error."""
    if _CALL in str(error):  # of what `_member` has returned: the file takes a method for it
        return _BY_NAME
    found = _REFUSED.search(str(error))
    return found and (found[1] or found[2])


@contextmanager
def _allowing(records: dict[str, type[_Record]]) -> Iterator[None]:
    """Let torch.load make these records and namespaces, and nothing that a library has allowed for itself."""
    before = get_safe_globals()
    clear_safe_globals()  # torch.distributed allows DeviceMesh, which joins a process group when it is made
    add_safe_globals([argparse.Namespace, (_member, _BY_NAME), *((record, name) for name, record in records.items())])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols other than torch's own, which are read as well
            yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _require_file(path: Path) -> None:
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device has no end
        msg = f"{path} is damaged: it is not a file.\nCopy it again."
        raise DamageError(msg)


def _require_sound(source: Path | IO[bytes]) -> None:
    """Refuse a compressed archive, and one with a damaged record that is not a tensor's."""
    if not isinstance(source, Path):
        source.seek(0)
    with zipfile.ZipFile(source) as archive:
        _require_uncompressed(archive)
        for entry in archive.infolist():
            if not _TENSOR.search(entry.filename):
                _verify(archive, entry)


def _require_uncompressed(archive: zipfile.ZipFile) -> None:
    """Refuse a compressed archive, which could unpack to more than memory holds; torch.save compresses nothing."""
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
        msg = "it is a compressed archive"
        raise ValueError(msg)


def _verify(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Read a record, at whose end zipfile compares its CRC-32; 0 is that of none (torch's set_crc32_options)."""
    if entry.CRC:
        with archive.open(entry) as record:
            while record.read(_BLOCK):
                pass


def _damaged(path: Path, error: BaseException) -> DamageError:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "weights_only" in line:  # torch advises to run what is in the file
        line = "its objects cannot be read"
    return DamageError(f"{path} is damaged, or not a file of torch.save: {line[:200]}\nCopy it again.")
