"""All dialects: how each format is read into our own form and written from it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint.checksums import WHOLE
from pretrain.tools.convert.dialects import deepspeed, hugging_face, megatron, neox, sharded
from pretrain.tools.convert.formats.recognition import checked, not_recognized, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from pretrain.checkpoint.checksums import Share
    from pretrain.tools.convert.conversion.planned_files import Write
    from pretrain.tools.convert.weights.model_weights import ModelWeights

READ: tuple[Callable[[Path, Mapping[str, Any]], ModelWeights | None], ...] = (
    *(sharded.read, megatron.read, neox.read, deepspeed.read, hugging_face.read),
)
"""Readers, in the order of pretrain.tools.convert.formats.recognition.FORMATS."""

WRITE: Mapping[str, Write] = {
    "pretrain": sharded.write_pretrain,
    "megatron": megatron.write,
    "torch_dist": sharded.write_torch_dist,
    "deepspeed": deepspeed.write,
    "neox": neox.write,
    "huggingface": hugging_face.write,
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
        for read in READ:
            if weights := checked(partial(read, folder, given), folder):
                return weights
    raise not_recognized(path)
