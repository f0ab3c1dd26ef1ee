"""Reading of files that torch.save has written, without running anything that they contain."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_RECONSTRUCT = np.array(0).__reduce__()[0]
_ALLOWED: tuple[Any, ...] = (
    argparse.Namespace,  # Megatron-LM's args
    *(np.ndarray, np.dtype, type(np.dtype("uint32")), _RECONSTRUCT),  # numpy's generator state
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),  # its name before numpy 2
)
"""Classes beyond torch's own that are made; none runs code of the file."""

_RECORDS = ("megatron.", "deepspeed.")
"""Packages whose classes are replaced by records without behaviour: enumerations in args, loss scalers."""

_REFUSED = re.compile(r"GLOBAL ([\w.]+)")
"""The class that torch.load refuses, in its message."""


class _Record:
    """An object of a class that is not imported: its arguments and its state."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


def read(path: Path) -> Any:
    """Return what a file holds; tensors are mapped from it, and read when they are used.

    Files in the format of before torch 1.6 are read whole.

    Raises:
        CheckpointError: it holds objects that could run code.
        DamageError: it is cut off, or not a file of torch.save.
    """
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            _require_uncompressed(path)
        return _load(path, is_zip=is_zip)
    except CheckpointError:
        raise
    except Exception as error:  # torch's reader raises anything for damaged bytes, struct.error and AssertionError too
        raise _damaged(path, error) from error


def _load(path: Path, *, is_zip: bool) -> Any:
    """Load, and again for each class of _RECORDS that is met."""
    allowed = list(_ALLOWED)
    while True:
        try:
            with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about pickle protocols other than torch's own, which are read as well
                return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        except pickle.UnpicklingError as error:
            found = _REFUSED.search(str(error))
            if found is None:
                raise _damaged(path, error) from error
            name = found[1]
            if not name.startswith(_RECORDS) or _is_among(name, allowed):
                msg = (
                    f"{path} holds {name}, which could run code. Nothing was executed.\n"
                    "Tensors, plain values, arrays and argparse.Namespace are read: save the file again without it."
                )
                raise CheckpointError(msg) from error
            allowed.append((_record_named(name), name))


def _record_named(name: str) -> type[_Record]:
    """Make a class of its own for each name, since torch.load keeps one name for a class."""
    return type(name.rpartition(".")[2], (_Record,), {})


def _is_among(name: str, allowed: Sequence[Any]) -> bool:
    return any(isinstance(entry, tuple) and entry[1] == name for entry in allowed)


def _require_uncompressed(path: Path) -> None:
    """Refuse a packed archive, which could unpack to more than memory holds; torch.save packs nothing."""
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            msg = "it is a packed archive"
            raise ValueError(msg)


def _damaged(path: Path, error: BaseException) -> DamageError:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DamageError(f"{path} is damaged, or not a file of torch.save: {line[:200]}")
