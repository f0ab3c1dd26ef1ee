"""megatron-core's sharded format (torch_dist), as this program and Megatron-LM write it.

Every tensor is stored whole, in pieces; `.metadata` is their index, and common.pt has what all ranks share.
"""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.sharded_format import (
    BACKEND,
    COMMON,
    INDEX,
    OPTIMIZER,
    common_of,
    is_ours,
    is_weight,
    iteration_told,
    read_index,
)
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.dtypes import dtype_names
from pretrain.tools.convert.formats.location import extent
from pretrain.tools.convert.formats.megatron_weights import (
    args_of,
    count,
    model_of,
    number_of_layers,
    settings_of_args,
)
from pretrain.tools.convert.formats.summary import Parts, Summary, contents
from pretrain.tools.convert.formats.tiling import require_tiled

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

_STACKED = re.compile(r"decoder\.layers\.(?!\d)")
"""Weights of all layers in one tensor, whose first dimension is the layer."""


@dataclass(frozen=True, kw_only=True)  # no slots: the weights are looked up once
class Content:
    """Everything but the tensors of a sharded checkpoint.

    Attributes:
        folder: of the checkpoint.
        kind: of the files, with its version.
        common: what all ranks share.
        index: of the tensors.
    """

    folder: Path
    kind: str
    common: dict[str, Any]
    index: Metadata

    @property
    def is_ours(self) -> bool:
        """`True` for a folder that this program wrote."""
        return is_ours(self.common)

    @property
    def format(self) -> str:
        """The format's name."""
        return "pretrain" if self.is_ours else "Megatron-LM, sharded"

    @property
    def iteration(self) -> int | None:
        """Iteration of the training; None where the files do not tell."""
        return iteration_told(self.common)

    @cached_property
    def weights(self) -> dict[str, TensorStorageMetadata]:
        """Tensors of the index that are weights, by their keys."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  as in `index_of`

        entries = self.index.state_dict_metadata.items()
        return {key: entry for key, entry in entries if is_weight(key) and isinstance(entry, TensorStorageMetadata)}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a recipe's section `model` that the files tell, and `padded_vocab_size`."""
        return _model(self._shapes) | (self.common["model"] if self.is_ours else settings_of_args(args_of(self.common)))

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(entry.size) for key, entry in self.weights.items()}

    def summary(self) -> Summary:
        """Return the checkpoint in a few words and numbers."""
        layout = self.common.get("layout", {}) if self.is_ours else args_of(self.common)
        keys = self.index.state_dict_metadata
        files, size = extent(self.folder)
        return Summary(
            path=self.folder,
            format=self.format,
            version=f"format {self.common['format']}" if self.is_ours else self.kind,
            iteration=self.iteration,
            model=self.settings,
            parameters=count(self._shapes, 1),
            parts=Parts(
                tensor=int(layout.get("tensor_model_parallel_size") or 1),
                pipeline=int(layout.get("pipeline_model_parallel_size") or 1),
                expert=int(layout.get("expert_model_parallel_size") or 1),
            ),
            dtypes=dtype_names(entry.properties.dtype for entry in self.weights.values()),
            contents=contents(
                optimizer=any(key.startswith(OPTIMIZER) for key in keys),
                rng=any(key.startswith("rng") for key in keys),
                schedule=bool(self.common.get("schedule") or self.common.get("opt_param_scheduler")),
            ),
            files=files,
            size=size,
        )


def describe(folder: Path) -> Summary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or a file is missing or could run code.
        DamageError: a file is cut off.
    """
    content = content_of(folder)
    return None if content is None else content.summary()


def content_of(folder: Path) -> Content | None:
    """Read everything but the tensors, or return None if the folder has another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or a file is missing or could run code.
        DamageError: a file is cut off.
    """
    if not (folder / BACKEND).is_file() or not (folder / COMMON).is_file():
        return None
    backend = _backend(folder)
    kind = f"{backend['sharded_backend']} {backend['sharded_backend_version']}"
    return Content(folder=folder, kind=kind, common=common_of(folder), index=index_of(folder))


def _backend(folder: Path) -> dict[str, Any]:
    try:
        backend = json.loads((folder / BACKEND).read_text(encoding="utf-8"))
        name = backend["sharded_backend"]
        backend["sharded_backend_version"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{folder / BACKEND} is damaged: it names no sharded_backend with its version."
        raise DamageError(msg) from error
    if name != "torch_dist":
        msg = (
            f"{folder} is a sharded checkpoint of megatron-core of kind {name}; torch_dist is read.\n"
            "Load it in the Megatron-LM that wrote it, and save it with --ckpt-format torch_dist."
        )
        raise CheckpointError(msg)
    return backend  # type: ignore[no-any-return]


def index_of(folder: Path) -> Metadata:
    """Return the index of the tensors.

    Raises:
        CheckpointError: it is missing.
        DamageError: it is damaged, or the pieces of a tensor have a number twice or not at all.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  half a second that other formats are spared

    try:
        index = read_index(folder)
        for key, tensor in index.state_dict_metadata.items():
            if isinstance(tensor, TensorStorageMetadata):
                pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks]
                require_tiled(folder / INDEX, key, tuple(tensor.size), pieces)
    except FileNotFoundError as error:
        msg = f"{folder} lacks {INDEX}, the index of its tensors.\nCopy it there; its name begins with a dot."
        raise CheckpointError(msg) from error
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        msg = f"{folder / INDEX} is damaged: {str(error)[:200]}\nCopy it again."
        raise DamageError(msg) from error
    return index


def _model(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    stacked = [shape[0] for name, shape in shapes.items() if _STACKED.match(name)]
    return model_of(shapes, max(stacked, default=number_of_layers(shapes)))
