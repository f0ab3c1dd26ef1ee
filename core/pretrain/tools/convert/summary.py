"""Summary of a checkpoint of any format, and the folder of one checkpoint in a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLayout:
    """Number of parts that the files divide a model into, by kind of parallelism; 1 where it is stored whole.

    Attributes:
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
        virtual_pipeline: chunks of layers on each stage.
        expert: expert-parallel ranks.
        data: data-parallel ranks among which ZeRO divides.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    expert: int = 1
    data: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSummary:
    """A checkpoint in a few words and numbers.

    Attributes:
        path: the folder or file of this one checkpoint.
        format: its format's name.
        version: of the format, where it has one.
        iteration: of the training, None where the files do not say it.
        model: settings of a recipe's section `model`, as far as the files tell them, and `padded_vocab_size`.
        parameters: of the whole model, shared ones once; the padding of the vocabulary included. None where
            weights have names that are not known.
        parts: how the files divide it.
        dtypes: of the weights, as a recipe calls them.
        contents: some of "weights", "optimizer", "rng", "schedule".
        files: number of files, those in folders of it included.
        size: of all files in bytes.
    """

    path: Path
    format: str
    version: str | None = None
    iteration: int | None = None
    model: dict[str, Any] = field(default_factory=dict)
    parameters: int | None
    parts: FileLayout = FileLayout()
    dtypes: tuple[str, ...]
    contents: tuple[str, ...]
    files: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """Return the summary as values of JSON."""
        return asdict(self) | {"path": str(self.path)}


def contents(*, optimizer: bool, rng: bool, schedule: bool) -> tuple[str, ...]:
    """Return a summary's contents: the weights, and what else is there."""
    others = {"optimizer": optimizer, "rng": rng, "schedule": schedule}
    return ("weights", *(name for name, is_there in others.items() if is_there))


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in a recipe, or torch's where a recipe has none."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def dtype_names(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
    """Return the different dtypes' names, sorted."""
    return tuple(sorted(set(map(dtype_name, dtypes))))


LATEST_OF_DEEPSPEED = "latest"
"""File of DeepSpeed and GPT-NeoX that names the newest folder."""
RELEASE = "release"
"""Content of Megatron-LM's LATEST, and folder, of weights that were published without an iteration."""


def one_checkpoint(path: Path) -> Path:
    """Return the folder of the latest checkpoint in `path`, or `path` itself where nothing names a latest one.

    Args:
        path: the folder of a run, of its checkpoints, or of one checkpoint.

    Raises:
        CheckpointError: it is not there, or names a latest checkpoint that is not.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        msg = f"{path} {what}.\nName the folder of a checkpoint, of several, or of a run."
        raise CheckpointError(msg)
    if not (path / LATEST).is_file() and (path / "checkpoints" / LATEST).is_file():
        path = path / "checkpoints"
    tracker = path / LATEST_OF_DEEPSPEED
    if (path / LATEST).is_file():
        try:
            return _latest(path)
        except CheckpointError:
            if not tracker.is_file():  # Megatron-DeepSpeed writes both, and only the folder that this one names
                raise
    if tracker.is_file():
        return _inside(tracker, tracker.read_text(errors="replace").strip())
    return path


def extent(folder: Path) -> tuple[int, int]:
    """Return the number and the bytes of all files in a folder and in folders of it; links to folders are not followed.

    A link counts as the file that it leads to, and one to nothing as itself.
    """
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return len(files), sum((file.stat() if file.exists() else file.lstat()).st_size for file in files)


def _latest(path: Path) -> Path:
    tracker = path / LATEST
    if tracker.read_text(errors="replace").strip() == RELEASE:
        return _inside(tracker, RELEASE)
    iteration = CheckpointFolder(path).latest()
    return path if iteration is None else CheckpointFolder(path).directory(iteration)


def _inside(tracker: Path, name: str) -> Path:
    """Return the folder that a file of one word names beside itself."""
    folder = tracker.parent / name
    if name in {"", ".", ".."} or Path(name).name != name or not folder.is_dir():
        msg = (
            f"{tracker} names {name[:80]!r}, and there is no such folder beside it.\nName the checkpoint's own folder."
        )
        raise CheckpointError(msg)
    return folder
