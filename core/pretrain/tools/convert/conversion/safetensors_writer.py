"""Files of safetensors, written block by block: the header, then the tensors (the README of safetensors, Format)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.digest import Recorder
from pretrain.errors import CheckpointError
from pretrain.tools.convert.weights.lazy_tensor import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ALIGNMENT = 8
"""The header is filled with spaces up to a multiple of so many bytes, as safetensors' own writer does."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file of safetensors.

    Attributes:
        name: path inside the target.
        tensors: by name.
    """

    name: str
    tensors: Mapping[str, LazyTensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file; return its digest and size.

        Raises:
            CheckpointError: a tensor has a dtype that weights do not have.
        """
        recorder = Recorder()
        with recorder.open(path, "wb") as file:
            file.write(self._header())
            for tensor in self.tensors.values():
                for block in tensor.blocks():
                    data = bytes_of(block)
                    file.write(data)
                    written(len(data))
            file.flush()
            os.fsync(file.fileno())
        return asdict(recorder.files[path.name])

    def _header(self) -> bytes:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name, tensor in self.tensors.items():
            if tensor.dtype not in _DTYPES:
                msg = f"{name} has dtype {tensor.dtype}, which no model of Hugging Face has.\nPass --dtype."
                raise CheckpointError(msg)
            header[name] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [place, place + tensor.nbytes],
            }
            place += tensor.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text
