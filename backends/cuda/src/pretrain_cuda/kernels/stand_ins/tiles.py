"""Tiles of the Triton kernels that decide on the memory of a backward pass: partial sums of weights' gradients.

They are repeated here because the kernels' own modules import Triton; a test holds them against those.
"""

from __future__ import annotations

NORM_PROGRAMS, NORM_LONGEST, NORM_TILE = 256, 8192, 4096
"""PROGRAMS, LONGEST and TILE of `triton.norm`."""

NORM_LONG_ROWS, NORM_LONG_CHUNKS = 16, 16
"""TILE_ROWS and CHUNKS of `triton.norm_long`."""

ACTIVATION_ROWS = 8 * 16
"""TILE_ROWS * STEPS of `triton.activation`."""

DROPOUT_ROWS = 4 * 4 * 16
"""4 * QUARTER * STEPS of `triton.bias_dropout_add`."""


def parts(rows: int, rows_of_one: int, most: int | None = None) -> int:
    """Return how many programs share the rows."""
    needed = -(-rows // rows_of_one)
    return needed if most is None else min(most, needed)
