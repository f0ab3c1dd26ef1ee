"""Hugging Face's format: config.json, and the weights in safetensors or torch files, whole or in shards."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.dtypes import dtype_name
from pretrain.tools.convert.formats.hugging_face_config import settings_of_config
from pretrain.tools.convert.formats.location import extent
from pretrain.tools.convert.formats.megatron_weights import flat_weights
from pretrain.tools.convert.formats.summary import Summary

if TYPE_CHECKING:
    from pathlib import Path

NAME = "Hugging Face"
CONFIG = "config.json"
_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights where they are one file; shards are listed in NAME.index.json."""

INDEX = ".index.json"
"""End of the name of the list of shards."""

BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attention|attn)\.(bias|masked_bias))$")
"""Masks and frequencies that old files of GPT-2 and GPT-NeoX hold among the weights."""


def describe(folder: Path) -> Summary | None:
    """Describe the model in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a shard is missing, or a file holds objects that could run code.
        DamageError: a file is cut off, or no JSON.
    """
    found = weights_name(folder)
    if found is None:
        return None
    config = json_object(folder / CONFIG)
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in weight_files(folder, found):
        tensors |= {name: seen for name, seen in _tensors(file).items() if BUFFERS.search(name) is None}
    files, size = extent(folder)
    version = config.get("transformers_version")
    return Summary(
        path=folder,
        format=format_name(found),
        version=None if version is None else f"transformers {version}",
        model=settings_of_config(config),
        parameters=sum(math.prod(shape) for shape, _ in tensors.values()),
        dtypes=tuple(sorted({dtype for _, dtype in tensors.values()})),
        contents=("weights",),
        files=files,
        size=size,
    )


def weights_name(folder: Path) -> str | None:
    """Return the name of the file of the weights, which may be in shards; None if the folder is of another format."""
    if not (folder / CONFIG).is_file():
        return None
    return next((name for name in _NAMES if (folder / name).is_file() or (folder / f"{name}{INDEX}").is_file()), None)


def format_name(name: str) -> str:
    """Return the format's name by that of the weights."""
    return f"{NAME}, {'safetensors' if name == _NAMES[0] else 'torch files'}"


def own_file(path: Path) -> Path:
    """Return a file of a model's folder; a link may lead into the folder, or to the blobs of the hub's cache.

    Those are `models--*/blobs` for the folder `models--*/snapshots/COMMIT`.

    Raises:
        CheckpointError: it is a link to somewhere else, which might be any file that the user can read.
    """
    folder, target = path.parent.resolve(), path.resolve()
    if not any(target.is_relative_to(place) for place in (folder, folder.parent.parent / "blobs")):
        msg = f"{path} is a link out of its folder, to {target}.\nCopy the file itself there."
        raise CheckpointError(msg)
    return path


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DamageError: it is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is damaged, or no JSON: {str(error)[:200]}"
        raise DamageError(msg) from error
    if not isinstance(value, dict):
        msg = f"{path} is no JSON object."
        raise DamageError(msg)
    return value


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the files of the weights.

    Raises:
        CheckpointError: the index of shards names one that is not in the folder, or one is a link out of it.
        DamageError: the index is no index.
    """
    if (folder / name).is_file():
        return [own_file(folder / name)]
    index = folder / f"{name}{INDEX}"
    shards = weight_map(index)
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if "/" in shard or "\\" in shard or not (folder / shard).is_file()]:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        msg = (
            f"{index} names {len(missing)} of {len(names)} files that are not in its folder: {shown}.\nCopy them there."
        )
        raise CheckpointError(msg)
    return [own_file(folder / shard) for shard in names]


def weight_map(index: Path) -> dict[str, str]:
    """Return the shard of every weight that an index names.

    Raises:
        DamageError: it is no index.
    """
    shards = json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        msg = f"{index} is damaged: it has no `weight_map` from weights to files."
        raise DamageError(msg)
    return shards


def _tensors(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    if file.suffix != ".safetensors":
        state = torch_file.read(file)
        if not isinstance(state, dict):
            msg = f"{file} holds no weights by name."
            raise DamageError(msg)
        once = {(tensor.data_ptr(), tensor.shape): name for name, tensor in flat_weights(state).items()}
        return {name: (tuple(state[name].shape), dtype_name(state[name].dtype)) for name in once.values()}
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
            return {name: (tuple(part.get_shape()), _dtype(part.get_dtype())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        msg = f"{file} is damaged, or no safetensors file: {str(error)[:200]}"
        raise DamageError(msg) from error


def _dtype(name: str) -> str:
    """Return a recipe's name of a dtype that safetensors calls F16 or BF16."""
    return name.lower() if name.startswith("B") else name.lower().replace("f", "fp", 1)
