"""A training may change its length within one epoch; beyond it Megatron would shuffle again, which is an error."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pretrain.data.samples.megatron_order import MegatronOrder, order_of, require_same_order
from pretrain.errors import DataError

LENGTHS = np.random.default_rng(0).integers(20, 60, 100).astype(np.int32)
EPOCH = (int(LENGTHS.sum()) - 1) // 32


def order(samples):
    """Return the order of so many samples of one file."""
    given = MegatronOrder(lengths=LENGTHS, documents=range(100), num_samples=samples, seq_length=32, seed=1)
    return order_of(SimpleNamespace(**dict(given.arrays())), samples)


@pytest.mark.parametrize(("before", "after"), [(20, EPOCH), (EPOCH, 20), (2 * EPOCH, 2 * EPOCH)])
def test_a_length_that_keeps_the_order_is_allowed(before, after):
    require_same_order(order(before), order(after))


@pytest.mark.parametrize(("before", "after"), [(EPOCH, EPOCH + 20), (2 * EPOCH, 3 * EPOCH), (3 * EPOCH, 10)])
def test_a_length_that_changes_the_order_is_refused(before, after):
    with pytest.raises(
        DataError, match=rf"reads {after} samples, the checkpoint's read {before} .*\nRestore the length"
    ):
        require_same_order(order(before), order(after))


def test_of_a_blend_every_part_counts():
    parts = [SimpleNamespace(document_index=np.arange(9), shuffle_index=np.arange(9) + shift) for shift in range(3)]
    blends = [order_of(SimpleNamespace(datasets=[*parts[:1], part]), number) for number, part in enumerate(parts)]
    assert len({blend["digest"] for blend in blends}) == 3
