"""Comparison of two checkpoints, file by file."""

from __future__ import annotations

from torch.distributed.checkpoint import FileSystemReader


def differing(one, other):
    """Return the names of files that differ; of the index what it says of tensors, without the folder and its id."""
    names = {path.name for folder in (one, other) for path in folder.iterdir()} - {"checksums.txt", ".metadata"}
    found = {name for name in names if content(one / name) != content(other / name)}
    return sorted(found | ({".metadata"} if index(one) != index(other) else set()))


def content(path):
    return path.read_bytes() if path.exists() else None


def index(folder):
    metadata = FileSystemReader(folder).read_metadata()
    return metadata.state_dict_metadata, metadata.storage_data, metadata.planner_data
