"""All formats of checkpoints: recognize a folder's, read it, write it."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pretrain.checkpoint.checksums import SMALL_FILES, WHOLE, require_intact
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError, DamageError, PretrainError
from pretrain.tools.convert.formats import (
    deepspeed,
    deepspeed_writer,
    hugging_face,
    hugging_face_writer,
    megatron,
    megatron_writer,
    neox,
    neox_writer,
    sharded,
)
from pretrain.tools.convert.model_weights import LATEST_OF_DEEPSPEED, RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from pretrain.checkpoint.checksums import Share
    from pretrain.tools.convert.model_weights import CheckpointSummary, ModelWeights
    from pretrain.tools.convert.target import Target, TargetLayout


T = TypeVar("T")
_LONGEST = 200
_LARGEST = 2**63


class Format(Protocol):
    """A module of `formats` that knows a program's files; None where a folder has others."""

    def describe(self, folder: Path, /) -> CheckpointSummary | None: ...  # noqa: D102
    def read(self, folder: Path, given: Mapping[str, Any], /) -> ModelWeights | None: ...  # noqa: D102


# DeepSpeed's layers come before its other files, which a pipeline has too
FORMATS: tuple[Format, ...] = (sharded, megatron, neox, deepspeed, hugging_face)
# Format's name on the command line -> its writer
WRITE: Mapping[str, Callable[[ModelWeights, TargetLayout], Target]] = {
    "pretrain": megatron_writer.write_pretrain,
    "megatron": megatron_writer.write,
    "torch_dist": megatron_writer.write_torch_dist,
    "deepspeed": deepspeed_writer.write,
    "neox": neox_writer.write,
    "huggingface": hugging_face_writer.write,
}
# Formats whose files depend on a layout, and on which sizes; in torch_dist and deepspeed only the padding does
WITH_LAYOUT = {
    "megatron": ("tensor", "pipeline"),
    **dict.fromkeys(("neox", "torch_dist", "deepspeed"), ("tensor",)),
}


def read_weights(path: Path, given: Mapping[str, Any], share: Share = WHOLE) -> ModelWeights:
    """Return the weights of a checkpoint of any format; no tensor is read yet, and nothing in it is executed."""
    for folder in _opened(path, share):
        for each in FORMATS:
            if weights := _checked(partial(each.read, folder, given), folder):
                return weights
    raise _not_recognized(path)


def summary_of(path: Path) -> CheckpointSummary:
    """Return a summary of the checkpoint at a path; of the content only `SMALL_FILES` are verified."""
    summary = recognized(path)
    if summary is None:
        raise _not_recognized(path)
    return summary


def recognized(path: Path) -> CheckpointSummary | None:
    """Return a summary as `summary_of` does; None if the folder holds nothing of a known format."""
    for folder in _opened(path, SMALL_FILES):
        for each in FORMATS:
            if summary := _checked(partial(each.describe, folder), folder):
                return _counted(summary)
    return None


def _not_recognized(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} has no checkpoint of a known format. Looked for: metadata.json and common.pt, mp_rank_*/"
        "model_optim_rng.pt, layer_*-model_*-model_states.pt, mp_rank_*_model_states.pt, config.json with weights.\n"
        "Name the folder that has them, or one with a file latest or latest_checkpointed_iteration.txt."
    )


def _opened(path: Path, share: Share) -> Iterator[Path]:
    """Yield the folder itself, and then the latest checkpoint that it names: a model may lie beside its training's."""
    if path.is_dir():
        require_intact(path, share)
        yield path
    found = one_checkpoint(path)
    if found != path:
        require_intact(found, share)
        yield found


def _checked(read: Callable[[], T], folder: Path) -> T:
    """Return what a function reads from a folder; contents that its format never has are damage."""
    try:
        return read()
    except (PretrainError, OSError):
        raise
    except Exception as error:
        what = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        msg = f"{folder} is damaged: unexpected values in its files ({what}).\nCopy it again."
        raise DamageError(msg) from error


def _counted(summary: CheckpointSummary) -> CheckpointSummary:
    """Count the files, and leave only values that can be shown: files may hold anything under names of settings."""
    files, size = _extent(summary.path)
    return replace(
        summary,
        files=files,
        size=size,
        version=summary.version if _is_plain(summary.version) else None,
        iteration=summary.iteration if type(summary.iteration) is int and _is_plain(summary.iteration) else None,
        model={name: value for name, value in summary.model.items() if _is_plain(value)},
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return value.isprintable() and len(value) <= _LONGEST
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < _LARGEST


def one_checkpoint(path: Path) -> Path:
    """Return the folder of the latest checkpoint in `path`, or `path` itself where nothing names a latest one."""
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


def _latest(path: Path) -> Path:
    tracker = path / LATEST
    if tracker.read_text(errors="replace").strip() == RELEASE:
        return _inside(tracker, RELEASE)
    iteration = CheckpointFolder(path).latest()
    return path if iteration is None else CheckpointFolder(path).directory(iteration)


def _inside(tracker: Path, name: str) -> Path:
    folder = tracker.parent / name
    if name in {"", ".", ".."} or Path(name).name != name or not folder.is_dir():
        msg = (
            f"{tracker} names {name[:80]!r}, and there is no such folder beside it.\nName the checkpoint's own folder."
        )
        raise CheckpointError(msg)
    return folder


def _extent(folder: Path) -> tuple[int, int]:
    """Return number and bytes of all files below a folder; a link counts as its file, or as itself if there is none."""
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return len(files), sum((file.stat() if file.exists() else file.lstat()).st_size for file in files)
