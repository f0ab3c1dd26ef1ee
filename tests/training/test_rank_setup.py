"""torch's switch for deterministic algorithms is as before when a training is over, and fills no memory."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from pretrain.training.rank_setup import deterministic


def switches():
    return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("wanted", [True, False])
def test_no_tensor_is_filled_and_all_settings_are_restored(wanted):
    before = switches()
    assert before == (False, True)  # torch's defaults
    with suppress(RuntimeError), deterministic(is_wanted=wanted):
        assert switches() == (wanted, False)
        raise RuntimeError
    assert switches() == before
