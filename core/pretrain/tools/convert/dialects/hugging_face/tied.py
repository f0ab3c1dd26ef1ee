"""The output layer of a tied model, where a file holds it besides the embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor


def equal_to(embedding: LazyTensor, output: LazyTensor, folder: Path, names: tuple[str, str]) -> LazyTensor:
    """Return the embedding, whose rows are compared with those of the output layer when they are read.

    Raises:
        CheckpointError: at once or while it is read, if they differ in a bit.
    """
    embeddings_name, outputs_name = names
    msg = (
        f"{folder} ties the output layer to the embedding, and {outputs_name} differs from {embeddings_name}.\n"
        "Keep both by --set model.untie_embeddings_and_output_weights=true, or leave one out."
    )
    if (embedding.shape, embedding.dtype) != (output.shape, output.dtype):
        raise CheckpointError(msg)

    def rows(begin: int, end: int) -> Tensor:
        found, other = embedding.rows(begin, end), output.rows(begin, end)
        if not torch.equal(found.flatten().view(torch.uint8), other.flatten().view(torch.uint8)):
            raise CheckpointError(msg)
        return found

    return replace(embedding, rows=rows, by_rows=embedding.by_rows and output.by_rows)
