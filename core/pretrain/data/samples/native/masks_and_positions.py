"""Convert ids to a training sample, with Megatron's masks and positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFormat:
    """Options of section `data` for the ends of documents; the result equals that of megatron-core's GPTDataset."""

    eod: int
    eod_mask_loss: bool
    reset_position_ids: bool
    reset_attention_mask: bool

    def __call__(self, ids: npt.NDArray[Any]) -> dict[str, Tensor]:
        """Return the sample, as `pretrain.data.samples.datasets.Datasets` describes it, of ids [seq_length + 1]."""
        ids = ids.astype(np.int64)  # the only copy, from the mapped file
        tokens = ids[:-1]
        is_end = tokens == self.eod
        positions = np.arange(tokens.size)
        sample = {
            "tokens": tokens,
            "labels": ids[1:],
            "loss_mask": np.where(is_end & self.eod_mask_loss, np.float32(0), np.float32(1)),
            "position_ids": positions - _document_begins(is_end, positions) if self.reset_position_ids else positions,
        }
        if self.reset_attention_mask:
            document = _document_begins(is_end, positions)
            is_future = positions[None, :] > positions[:, None]
            sample["attention_mask"] = (is_future | (document[None, :] != document[:, None]))[None]
        return {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in sample.items()}


def _document_begins(is_end: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the begin of each token's document; an end-of-document token belongs to the document that it ends."""
    begins = np.zeros_like(positions)
    begins[1:] = np.maximum.accumulate(np.where(is_end, positions + 1, 0))[:-1]
    return begins
