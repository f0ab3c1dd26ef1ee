"""All formats of checkpoints: recognize a folder's, read it, write it."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pretrain.checkpoint.checksums import SMALL_FILES, WHOLE, require_intact
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError, PretrainError, RecipeError
from pretrain.launch.run_directory import checkpoints_of
from pretrain.stores.local_copies import shown_place
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
from pretrain.tools.convert.stored import damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from pretrain.checkpoint.checksums import Share
    from pretrain.tools.convert.model_weights import CheckpointSummary, FileLayout, ModelWeights
    from pretrain.tools.convert.target import Target

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
WRITE: Mapping[str, Callable[[ModelWeights, FileLayout], Target]] = {
    "pretrain": megatron_writer.write_pretrain,
    "megatron": megatron_writer.write,
    "torch_dist": megatron_writer.write_torch_dist,
    "deepspeed": deepspeed_writer.write,
    "neox": neox_writer.write,
    "huggingface": hugging_face_writer.write,
}
# Formats whose files depend on a layout, and on which sizes; in torch_dist and deepspeed only the padding does
WITH_LAYOUT = {"megatron": ("tensor", "pipeline"), **dict.fromkeys(("neox", "torch_dist", "deepspeed"), ("tensor",))}


def read_weights(path: Path, given: Mapping[str, Any], share: Share = WHOLE) -> ModelWeights:
    """Return the weights of a checkpoint of any format; no tensor is read yet, and nothing in it is executed."""
    weights = _first_found(path, share, lambda each, folder: each.read(folder, given))
    if weights is None:
        raise _not_recognized(path)
    return weights


def summary_of(path: Path) -> CheckpointSummary:
    """Return a summary of the checkpoint at a path; of the content only `SMALL_FILES` are verified."""
    summary = recognized(path)
    if summary is None:
        raise _not_recognized(path)
    return summary


def recognized(path: Path) -> CheckpointSummary | None:
    """Return a summary as `summary_of` does; None if the folder holds nothing of a known format."""
    summary = _first_found(path, SMALL_FILES, lambda each, folder: each.describe(folder))
    return None if summary is None else _counted(summary)


def _not_recognized(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{shown_place(path)} has no checkpoint of a known format. Looked for: metadata.json and common.pt, mp_rank_*/"
        "model_optim_rng.pt, layer_*-model_*-model_states.pt, mp_rank_*_model_states.pt, config.json with weights.\n"
        "Name the folder that has them, or one with a file latest or latest_checkpointed_iteration.txt."
    )


def _first_found(path: Path, share: Share, read: Callable[[Format, Path], T | None]) -> T | None:
    """Return what the first format reads that knows the folder; contents that its format never has are damage."""
    for folder in _opened(path, share):
        try:
            found = next(filter(None, (read(each, folder) for each in FORMATS)), None)
        except (PretrainError, OSError):
            raise
        except Exception as error:
            what = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise damaged(folder, f"is damaged: unexpected values in its files ({what})") from error
        if found is not None:
            return found
    return None


def _opened(path: Path, share: Share) -> Iterator[Path]:
    """Yield the folder itself, and then the latest checkpoint that it names: a model may lie beside its training's."""
    if path.is_dir():
        require_intact(path, share)
        yield path
    found = one_checkpoint(path)
    if found != path:
        require_intact(found, share)
        yield found


def _counted(summary: CheckpointSummary) -> CheckpointSummary:
    """Count the files, and leave only values that can be shown: files may hold anything under names of settings."""
    files = [Path(parent, name) for parent, _, names in os.walk(summary.path) for name in names]
    return replace(
        summary,
        files=len(files),
        size=sum((file.stat() if file.exists() else file.lstat()).st_size for file in files),  # a dead link's own
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
    if not any((path / name).is_file() for name in (LATEST, LATEST_OF_DEEPSPEED)):
        path = _saved_by_run(path)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        msg = f"{path} {what}.\nName the folder of a checkpoint, of several checkpoints, or of a run."
        raise CheckpointError(msg)
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


def _saved_by_run(path: Path) -> Path:
    """Return the folder of a run's checkpoints, which may be elsewhere; the path itself if it is no run's."""
    try:
        path = checkpoints_of(path)
    except RecipeError as error:  # of another version
        msg = f"{error}\nName the folder of the run's checkpoints instead, such as {path / 'checkpoints'}."
        raise CheckpointError(msg) from error
    return path / "checkpoints" if (path / "checkpoints" / LATEST).is_file() else path


def _latest(path: Path) -> Path:
    tracker = path / LATEST
    if tracker.read_text(errors="replace").strip() == RELEASE:
        return _inside(tracker, RELEASE)
    iteration = CheckpointFolder(path).latest()
    return path if iteration is None else CheckpointFolder(path).directory(iteration)


def _inside(tracker: Path, name: str) -> Path:
    folder = tracker.parent / name
    if name in {"", ".", ".."} or Path(name).name != name or not folder.is_dir():
        place = f"{shown_place(tracker.parent)}/{tracker.name}"
        msg = f"{place} names {name[:80]!r}, but no such folder is beside it.\nName the checkpoint's own folder."
        raise CheckpointError(msg)
    return folder
