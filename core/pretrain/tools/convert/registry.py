"""All formats of checkpoints: recognize a folder's, read it, write it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pretrain.checkpoint.checksums import SMALL_FILES, WHOLE, require_intact
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
    sharded_writer,
)
from pretrain.tools.convert.summary import one_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from pretrain.checkpoint.checksums import Share
    from pretrain.tools.convert.model_weights import ModelWeights
    from pretrain.tools.convert.summary import CheckpointSummary
    from pretrain.tools.convert.target import Write


class Format(Protocol):
    """A module of `formats` that knows a program's files; None where a folder has others."""

    def describe(self, folder: Path, /) -> CheckpointSummary | None: ...  # noqa: D102
    def read(self, folder: Path, given: Mapping[str, Any], /) -> ModelWeights | None: ...  # noqa: D102


FORMATS: tuple[Format, ...] = (sharded, megatron, neox, deepspeed, hugging_face)
"""DeepSpeed's layers come before its other files, which a pipeline has too."""

WRITE: Mapping[str, Write] = {
    "pretrain": sharded_writer.write_pretrain,
    "megatron": megatron_writer.write,
    "torch_dist": sharded_writer.write_torch_dist,
    "deepspeed": deepspeed_writer.write,
    "neox": neox_writer.write,
    "huggingface": hugging_face_writer.write,
}
"""Format's name on the command line -> its writer."""

WITH_LAYOUT = {
    "megatron": ("tensor", "pipeline"),
    **dict.fromkeys(("neox", "torch_dist", "deepspeed"), ("tensor",)),
}
"""Formats whose files depend on a layout, and on which sizes; in torch_dist and deepspeed only the padding does."""


def read_weights(path: Path, given: Mapping[str, Any], share: Share = WHOLE) -> ModelWeights:
    """Return the weights of a checkpoint of any format; no tensor is read yet, and nothing in it is executed.

    Args:
        path: folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.
        given: settings of the section `model` that the files do not tell; they win over the files.
        share: files that this process verifies by the checkpoint's checksums, if it has any.

    Raises:
        CheckpointError: it is not there, of no known format, incomplete, of a model that is not ours, or holds objects
            that could run code.
        DamageError: a file is damaged.
    """
    for folder in opened(path, share):
        for each in FORMATS:
            if weights := checked(partial(each.read, folder, given), folder):
                return weights
    raise not_recognized(path)


T = TypeVar("T")
_LONGEST = 200
_LARGEST = 2**63


def summary_of(path: Path) -> CheckpointSummary:
    """Return a summary of the checkpoint at a path; nothing that its files contain is executed.

    By checksums.txt all sizes are verified, and of the content the smallest files (`SMALL_FILES`).

    Args:
        path: folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.

    Raises:
        CheckpointError: it is not there, of no known format, incomplete, or holds objects that could run code.
        DamageError: a file is damaged.
    """
    summary = recognized(path)
    if summary is None:
        raise not_recognized(path)
    return summary


def recognized(path: Path) -> CheckpointSummary | None:
    """Return a summary as `summary_of` does; None if the folder holds nothing of a known format."""
    for folder in opened(path, SMALL_FILES):
        for each in FORMATS:
            if summary := checked(partial(each.describe, folder), folder):
                return _plain(summary)
    return None


def not_recognized(path: Path) -> CheckpointError:
    """Return the error for a folder of no known format."""
    return CheckpointError(
        f"{path} has no checkpoint of a known format. Looked for: metadata.json and common.pt, mp_rank_*/"
        "model_optim_rng.pt, layer_*-model_*-model_states.pt, mp_rank_*_model_states.pt, config.json with weights.\n"
        "Name the folder that has them, or one with a file latest or latest_checkpointed_iteration.txt."
    )


def opened(path: Path, share: Share) -> Iterator[Path]:
    """Yield the folder itself, and then the latest checkpoint that it names: a model may lie beside its training's.

    Raises:
        CheckpointError: there is no folder, or what it names is not there.
        DamageError: the share of a folder that is verified has not the content that its checksums tell.
    """
    if path.is_dir():
        require_intact(path, share)
        yield path
    found = one_checkpoint(path)
    if found != path:
        require_intact(found, share)
        yield found


def checked(read: Callable[[], T], folder: Path) -> T:
    """Return what a function reads from a folder; contents that its format never has are damage.

    Raises:
        DamageError: the function fails on them.
    """
    try:
        return read()
    except (PretrainError, OSError):
        raise
    except Exception as error:
        what = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        msg = f"{folder} is damaged: unexpected values in its files ({what}).\nCopy it again."
        raise DamageError(msg) from error


def _plain(summary: CheckpointSummary) -> CheckpointSummary:
    """Leave only values that can be shown: files may hold anything under the names of settings."""
    return replace(
        summary,
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
