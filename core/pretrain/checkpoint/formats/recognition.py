"""The format of a checkpoint, recognized by its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.checkpoint.formats import hugging_face, megatron_ranks, pipeline_layers, sharded, zero_shards
from pretrain.checkpoint.formats.location import one_checkpoint
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.checkpoint.formats.summary import Summary

FORMATS: tuple[Callable[[Path], Summary | None], ...] = (
    *(sharded.describe, megatron_ranks.describe, pipeline_layers.describe, zero_shards.describe, hugging_face.describe),
)
"""DeepSpeed's layers come before its other files, which a pipeline has too."""


def summary_of(path: Path) -> Summary:
    """Return a summary of the checkpoint at a path; nothing that its files contain is executed.

    Args:
        path: folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.

    Raises:
        CheckpointError: it is not there, of no known format, incomplete, or holds objects that could run code.
        DamageError: a file is damaged.
    """
    folder = one_checkpoint(path)
    for describe in FORMATS:
        if summary := describe(folder):
            return summary
    msg = (
        f"{folder} holds no checkpoint of a known format. Looked for: metadata.json and common.pt, mp_rank_*/"
        "model_optim_rng.pt, layer_*-model_*-model_states.pt, mp_rank_*_model_states.pt, config.json with weights.\n"
        "Name the folder that has them, or one with a file latest or latest_checkpointed_iteration.txt."
    )
    raise CheckpointError(msg)
