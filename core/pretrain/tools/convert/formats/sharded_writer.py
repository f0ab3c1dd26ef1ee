"""Write a sharded checkpoint (torch.distributed.checkpoint): ours, or Megatron-LM's torch_dist."""

from __future__ import annotations

import io
import json
import os
import pickle
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pretrain.atomic_files import replacing
from pretrain.checkpoint.checksums import Recorder
from pretrain.checkpoint.folder import FORMAT, LATEST, folder_name, tracked
from pretrain.checkpoint.identity import structure
from pretrain.checkpoint.sharded_format import BACKEND, COMMON, INDEX, sharded_name
from pretrain.tools.convert.formats.megatron_writer import args_for, place_of, require_possible
from pretrain.tools.convert.model_weights import EMBEDDING
from pretrain.tools.convert.summary import dtype_name
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import ModelWeights
    from pretrain.tools.convert.target import TargetLayout


_PIECE = 16 << 20
"""Bytes of a tensor that are written as one piece, of which the index has an entry."""

_BACKEND_CONTENT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of metadata.json (CheckpointingConfig of megatron-core)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole tensor under a key, or one place of the key's first dimension.

    Attributes:
        key: in the checkpoint.
        place: in the first dimension; None: the tensor is all that the key has.
        count: size of that dimension.
        tensor: the numbers.
    """

    key: str
    place: int | None
    count: int
    tensor: LazyTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all that the key has."""
        return self.tensor.shape if self.place is None else (self.count, *self.tensor.shape)


@dataclass(frozen=True, slots=True)
class ShardedFile:
    """A file of tensors, each in blocks that torch.save writes one after the other.

    Attributes:
        name: path inside the target.
        entries: tensors in it.
        empty: keys of states without content, which megatron-core expects beside its layers' weights.
    """

    name: str
    entries: tuple[Entry, ...]
    empty: tuple[str, ...] = field(default=())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(entry.tensor.nbytes for entry in self.entries)

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file; return its digest and the places of its blocks for the index."""
        recorder = Recorder()
        places: list[Any] = []
        with recorder.open(path, "wb") as opened:
            file: Any = opened  # what torch.save needs of a file
            for key in self.empty:
                begin = file.tell()
                torch.save([None], file)
                places.append([key, None, None, begin, file.tell() - begin])
            for entry in self.entries:
                first = 0
                for block in entry.tensor.blocks(_PIECE):
                    begin = file.tell()
                    stacked = block if entry.place is None else block.unsqueeze(0)
                    torch.save(stacked.clone() if stacked.untyped_storage().nbytes() > block.nbytes else stacked, file)
                    offsets = [first] + [0] * (block.dim() - 1)
                    whole = offsets if entry.place is None else [entry.place, *offsets]
                    places.append([entry.key, whole, list(stacked.shape), begin, file.tell() - begin])
                    first += block.shape[0]
                    written(block.nbytes)
            file.flush()
            os.fsync(file.fileno())
        return {"places": places, **asdict(recorder.files[path.name])}


def write_index(folder: Path, entries: Iterable[Entry], written: Mapping[str, Any]) -> None:
    """Write the index of the tensors.

    Args:
        folder: of the checkpoint.
        entries: of all files.
        written: by name, what writing each file returned.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415  half a second that others are spared
    from torch.distributed.checkpoint.metadata import (  # noqa: PLC0415
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    storage: dict[MetadataIndex, Any] = {}
    described: dict[str, Any] = {}
    for name, file in written.items():
        for key, offsets, sizes, begin, length in file["places"]:
            if offsets is None:
                storage[MetadataIndex(key)] = _StorageInfo(name, begin, length)
                described[key] = BytesStorageMetadata()
                continue
            storage[MetadataIndex(key, torch.Size(offsets))] = _StorageInfo(name, begin, length)
            chunks.setdefault(key, []).append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
    for entry in entries:
        described[entry.key] = TensorStorageMetadata(
            TensorProperties(dtype=entry.tensor.dtype), torch.Size(entry.shape), chunks[entry.key]
        )
    index = Metadata(state_dict_metadata=described, storage_data=storage)
    with (folder / INDEX).open("wb") as file:
        pickle.dump(index, file)
        file.flush()
        os.fsync(file.fileno())


def backend_json() -> bytes:
    """Return the content of metadata.json."""
    return json.dumps(_BACKEND_CONTENT).encode()


_LINEAR = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def write_pretrain(weights: ModelWeights, layout: TargetLayout) -> Target:  # noqa: ARG001  the format has no layout
    """Return the files of a folder of checkpoints of this program that has one, with weights alone."""
    weights = weights.padded_for(1, with_zeros=True)
    iteration = weights.iteration or 0
    name = folder_name(iteration)
    progress = {
        "iteration": iteration,
        "consumed_samples": weights.consumed_samples or 0,
        "skipped_iterations": 0,
        "blend": None,
        "order": None,
    }
    common = {
        "format": FORMAT,
        "progress": progress,
        "model": structure(weights.model) | {"vocab_size": weights.vocab_size, "vocabulary_rows": weights.rows},
        "dtype": dtype_name(weights.tensors[EMBEDDING].dtype),
        "settings": {},
        "samples": {},
    }
    if weights.schedule:
        common["schedule"] = dict(weights.schedule)
    files = _files(weights, name)
    small = {f"{name}/{COMMON}": _saved(common), f"{name}/{BACKEND}": backend_json()}

    def finish(folder: Path, written: Mapping[str, Any]) -> None:
        _write_index(folder / name, files, written)
        with replacing(folder / LATEST, error=None) as file:
            file.write(tracked(str(iteration)).encode())

    return Target(files=files, small=small, folder=name, finish=finish)


def write_torch_dist(weights: ModelWeights, layout: TargetLayout) -> Target:
    """Return the files of a folder of checkpoints of Megatron-LM that has one, with weights alone."""
    require_possible(weights.model, layout)
    weights = weights.padded_for(layout.tensor)
    name, latest = place_of(weights.iteration)
    common = {
        "args": args_for(weights, layout),
        "checkpoint_version": 3.0,
        "iteration": weights.iteration or 0,
        "content_metadata": {},
    }
    if weights.schedule:
        common["opt_param_scheduler"] = dict(weights.schedule)
    files = _files(weights, name)
    small = {
        f"{name}/{COMMON}": _saved(common),
        f"{name}/{BACKEND}": backend_json(),
        LATEST: latest,
    }
    return Target(
        files=files,
        small=small,
        folder=name,
        finish=lambda folder, written: _write_index(folder / name, files, written),
    )


def _files(weights: ModelWeights, folder: str) -> list[ShardedFile]:
    """Return a file for each layer, and one for each of the other weights."""
    layers: dict[int | None, list[Entry]] = {}
    for name, tensor in weights.tensors.items():
        key, layer = sharded_name(name)
        layers.setdefault(layer, []).append(Entry(key, layer, weights.model.num_layers, tensor))
    files: list[ShardedFile] = []
    for layer, entries in layers.items():
        groups = [entries] if layer is not None else [[entry] for entry in entries]
        for group in groups:
            empty = () if layer is None else _empty_states(layer, weights.model.num_layers)
            files.append(ShardedFile(f"{folder}/__0_{len(files)}.distcp", tuple(group), empty))
    return files


def _empty_states(layer: int, layers: int) -> tuple[str, ...]:
    """Return the keys of a layer's extra states, in which Transformer Engine would keep scales of FP8."""
    parents = {name: "self_attention" if name in _LINEAR[:2] else "mlp" for name in _LINEAR}
    return tuple(
        f"decoder.layers.{parent}.{name}._extra_state/shard_{layer}_{layers}" for name, parent in parents.items()
    )


def _write_index(folder: Path, files: list[ShardedFile], written: Mapping[str, Any]) -> None:
    write_index(
        folder,
        [entry for file in files for entry in file.entries],
        {file.name.rpartition("/")[2]: written[file.name] for file in files},
    )


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
