"""Products of parameters, of which a commit has some."""

from __future__ import annotations

from itertools import product

import pytest


def one_on_a_commit(firsts, seconds):
    """Return parameters of all pairs: each of `firsts` with one of `seconds`, in turn; the others marked `full`."""
    return [
        pytest.param(*_flat(first), *_flat(second), marks=[pytest.mark.full] * (row % len(seconds) != column))
        for (row, first), (column, second) in product(enumerate(firsts), enumerate(seconds))
    ]


def _flat(values):
    return values if isinstance(values, tuple) else (values,)
