"""A sharded checkpoint's index, read and checked before torch reads it with plain pickle, which may run code."""

from __future__ import annotations

import dataclasses
import pickle
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

INDEX = ".metadata"
_DATA_MODULES = tuple(f"torch.distributed.checkpoint.{name}" for name in ("filesystem", "metadata", "planner"))
_OTHERS = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}


def read_index(directory: Path) -> Metadata:
    """Return the index; refuse anything that is not the data of an index.

    Raises:
        pickle.UnpicklingError: it is damaged, or holds something else.
        OSError: it cannot be read.
    """
    from torch.distributed.checkpoint.metadata import Metadata  # noqa: PLC0415  half a second that other formats are spared

    if (directory / INDEX).exists() and not (directory / INDEX).is_file():  # a pipe would be waited for
        msg = f"{INDEX} is no file"
        raise pickle.UnpicklingError(msg)
    with (directory / INDEX).open("rb") as file:
        found = _Unpickler(file).load()
    if not isinstance(found, Metadata):
        msg = f"{INDEX} is no index"
        raise pickle.UnpicklingError(msg)
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return dtypes and torch's own records; a dotted name would reach what a module imports."""
        if "." not in name and (module in _DATA_MODULES or module == "torch" or (module, name) in _OTHERS):
            found = super().find_class(module, name)
            if (module, name) in _OTHERS or isinstance(found, torch.dtype) or _is_record(found, module):
                return found
        msg = f"{INDEX} holds {module}.{name}, which is not part of an index"
        raise pickle.UnpicklingError(msg)


def _is_record(found: Any, module: str) -> bool:
    is_data = dataclasses.is_dataclass(found) or (isinstance(found, type) and issubclass(found, Enum))
    return is_data and found.__module__ == module
