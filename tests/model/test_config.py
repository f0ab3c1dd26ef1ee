"""megatron-core's configuration of model and schedule."""

from __future__ import annotations

import pytest

from engine import tiny
from pretrain.model.config import transformer_config
from pretrain.plugins.backend import PointToPoint

LAYERS = "model.num_layers=8"


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("stages", "virtual", "meets_twice"), [(2, None, False), (4, None, False), (2, 2, True), (4, 2, False)]
)
def test_messages_go_one_by_one_where_one_batch_would_hold_two_for_one_peer(batched, stages, virtual, meets_twice):
    """An interleaved schedule on two stages sends both ways to one rank; only the order distinguishes messages."""
    sizes = [f"parallel.pipeline_model_parallel_size={stages}"]
    if virtual:
        sizes.append(f"parallel.virtual_pipeline_model_parallel_size={virtual}")
        sizes.append("parallel.overlap_p2p_comm=false")
    config = transformer_config(tiny.tiny(LAYERS, *sizes), PointToPoint(batched=batched, overlapped=True))
    assert config.batch_p2p_comm is (batched and not meets_twice)


INTERLEAVED = ("parallel.pipeline_model_parallel_size=2", "parallel.virtual_pipeline_model_parallel_size=2")


@pytest.mark.parametrize(
    ("overrides", "can", "overlaps"),
    [
        (INTERLEAVED, True, True),
        (INTERLEAVED, False, False),
        ((*INTERLEAVED, "parallel.overlap_p2p_comm=false"), True, False),
        (INTERLEAVED[:1], True, False),
    ],
)
def test_stages_of_the_interleaved_schedule_compute_while_they_communicate_where_they_can(overrides, can, overlaps):
    config = transformer_config(tiny.tiny(LAYERS, *overrides), PointToPoint(batched=True, overlapped=can))
    assert config.overlap_p2p_comm is overlaps
    assert not (config.overlap_p2p_comm and config.batch_p2p_comm)  # megatron-core refuses both
