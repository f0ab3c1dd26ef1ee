"""Tensors in a part of a flat one, as ZeRO keeps them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from torch import Tensor


def unflattened(flat: LazyTensor, start: int, shape: tuple[int, ...]) -> LazyTensor:
    """Return the tensor of a shape whose numbers begin at `start` of a flat tensor [n]; rows of it read only theirs."""
    row = math.prod(shape[1:])

    def rows(begin: int, end: int) -> Tensor:
        return flat.rows(start + begin * row, start + end * row).view(end - begin, *shape[1:])

    return LazyTensor(shape, flat.dtype, rows, flat.by_rows)
