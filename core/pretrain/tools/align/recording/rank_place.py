"""Place of a rank in the layout, as a recording keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Place of a rank in the layout, and sizes that its tensors depend on.

    Attributes:
        rank: of all ranks.
        tensor_rank: of the tensor-parallel ranks.
        tensor_size: number of those.
        data_rank: of the data-parallel ranks.
        data_size: number of those.
        pipeline_rank: its stage.
        seq_length: of a whole sequence.
        is_gated: linear_fc1 has the rows of a gate and of an up projection (swiglu).
    """

    rank: int
    tensor_rank: int
    tensor_size: int
    data_rank: int
    data_size: int
    pipeline_rank: int
    seq_length: int
    is_gated: bool
