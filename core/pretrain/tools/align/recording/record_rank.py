"""Entry point of a rank that records, and the disk space that recordings take."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError, RunError
from pretrain.report.flops import parameter_count
from pretrain.training.run import ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


def record(
    recipe: Recipe, *, backend_name: str, world: World, folder: str, steps: int, positions: int, checkpoint: str | None
) -> None:
    """Record steps as one rank of `world`; called once per process, after `pretrain.launch` has set its environment."""
    plugins = ready(recipe, backend_name)
    from pretrain.tools.align.recording.recorder import record_steps  # noqa: PLC0415  imports megatron.core: after the bridge
    from pretrain.training.rank_setup import deterministic  # noqa: PLC0415

    with deterministic(is_wanted=recipe.train.deterministic_mode), naming_full_disk(folder):
        record_steps(recipe, plugins, world, Path(folder), steps=steps, positions=positions, checkpoint=checkpoint)


REMEDY = (
    "Name a folder on a larger disk by --record or --keep (without them TMPDIR is used), or lower --positions or "
    "train.global_batch_size."
)
_OF_HIDDEN, _OF_FEED_FORWARD = 26, 8
"""Recorded numbers for each token and layer, as multiples of model.hidden_size and of model.ffn_hidden_size: outputs of
the calls, and gradients of their inputs."""


def recording_bytes(recipe: Recipe, steps: int, positions: int, vocab_size: int) -> int:
    """Return about how much a recording takes on the disk: weights and moments, and activations."""
    model, is_fp32 = recipe.model, recipe.precision.dtype == "fp32"
    states = (steps + 1) * (12 if is_fp32 else 16) * parameter_count(model, vocab_size)
    layer = _OF_HIDDEN * model.hidden_size + _OF_FEED_FORWARD * model.ffn_hidden_size
    tokens = steps * recipe.train.global_batch_size * min(positions, model.seq_length)
    activations = tokens * model.num_layers * layer * (4 if is_fp32 else 2)
    logits = tokens * 8 * vocab_size  # and their gradients, fp32
    return states + logits + activations * recipe.parallel.tensor_model_parallel_size


def require_space(folder: Path, recipes: Sequence[Recipe], steps: int, positions: int) -> None:
    """Check that the disk has room for recordings."""
    needed = sum(recording_bytes(recipe, steps, positions, _vocab_size(recipe)) for recipe in recipes)
    free = shutil.disk_usage(folder).free
    if needed > free:
        msg = f"{folder} has {free / 1e9:.1f} GB free; the recordings need about {needed / 1e9:.1f} GB.\n{REMEDY}"
        raise RunError(msg)


def _vocab_size(recipe: Recipe) -> int:
    from pretrain.data.tokenizers.load import load_tokenizer  # noqa: PLC0415  slow; ranks of a recording need it not

    try:
        return load_tokenizer(recipe.tokenizer).vocab_size
    except PretrainError:  # the recording makes it, or says what is wrong
        return 0


@contextmanager
def naming_full_disk(folder: str) -> Iterator[None]:
    """Raise RunError if the disk is full within a block, whatever library found it."""
    try:
        yield
    except Exception as error:
        if os.strerror(errno.ENOSPC) not in str(error):  # libraries in other languages give the text alone
            raise
        msg = f"{folder} cannot be written: {os.strerror(errno.ENOSPC)}.\n{REMEDY}"
        raise RunError(msg) from error
