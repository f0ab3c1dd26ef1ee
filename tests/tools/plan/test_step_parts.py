"""Time of messages by where the ranks of a group are."""

from __future__ import annotations

import pytest

from pretrain.plugins.backend import Figures
from pretrain.recipe.layout import Layout
from pretrain.tools.plan.device import Efficiencies
from pretrain.tools.plan.stage_plan import Message, Operation
from pretrain.tools.plan.step_time import RankLinks, Roofline

FIGURES = Figures(link_bandwidth=100.0, node_bandwidth=10.0, devices_per_node=8)


def links(tensor, pipeline, data, figures=FIGURES, experts=None):
    layout = Layout(
        world_size=tensor * pipeline * data,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        data_parallel_size=data,
        virtual_pipeline_model_parallel_size=None,
        layers_of_chunks=(1,) * pipeline,
        micro_batch_size=1,
        expert_model_parallel_size=experts,
        expert_tensor_parallel_size=experts and 1,
    )
    return RankLinks(figures, layout, 0.5)


def seconds(of, kind, group, size, moved=400):
    return of.seconds({Message(kind, group, size, moved): 1})


@pytest.mark.parametrize(
    ("kind", "sent"), [("all-reduce", 700), ("all-gather", 350), ("reduce-scatter", 350), ("broadcast", 400)]
)
def test_a_ring_of_eight_sends_this_many_bytes(kind, sent):
    assert seconds(links(8, 2, 1), kind, "tensor", 8) == pytest.approx(sent / 50)


def test_experts_are_on_neighbours_and_what_leaves_a_node_does_by_each_rank_s_own_port():
    """Of 16 ranks 8 are in other nodes, so that half of what a rank sends leaves its node."""
    assert seconds(links(1, 1, 16, experts=8), "all-to-all", "experts", 8) == pytest.approx(400 * 7 / 8 / 50)
    assert seconds(links(1, 1, 16, experts=16), "all-to-all", "experts", 16) == pytest.approx(400 / 2 / 5)
    assert seconds(links(1, 1, 32, experts=8), "reduce-scatter", "expert data", 4) == pytest.approx(300 / 5)


def test_replicas_in_other_nodes_share_one_port_of_each_rank_there():
    """Of 8 tensor-parallel ranks in a node each has a ring of its own; of 4, two ranks of a ring are in a node."""
    assert seconds(links(8, 1, 4), "all-gather", "data", 4) == pytest.approx(300 / (10 * 0.5))
    assert seconds(links(4, 1, 8), "all-gather", "data", 8) == pytest.approx(350 / (20 * 0.5))


def test_a_ring_is_no_faster_than_the_links_inside_a_node():
    figures = Figures(link_bandwidth=15.0, node_bandwidth=10.0, devices_per_node=8)
    assert seconds(links(4, 1, 8, figures), "all-gather", "data", 8) == pytest.approx(350 / (15 * 0.5))


def test_the_next_stage_is_in_another_node_unless_all_are_in_one():
    assert seconds(links(1, 8, 1), "receive", "pipeline", 8) == pytest.approx(400 / 50)
    assert seconds(links(2, 8, 1), "receive", "pipeline", 8) == pytest.approx(400 / 5)


def test_a_message_is_counted_where_it_is_received():
    assert seconds(links(1, 8, 1), "send", "pipeline", 8) == 0


def test_a_link_of_unknown_speed_takes_no_time_and_is_known_as_such():
    without = links(8, 2, 1, Figures(link_bandwidth=100.0, devices_per_node=8))
    message = Message("receive", "pipeline", 2, 400)
    assert without.seconds({message: 1}) == 0
    inside = Message("all-reduce", "tensor", 8, 400)
    assert without.unknown([message, inside]) == ["between nodes"]
    assert links(8, 2, 1, Figures(devices_per_node=8)).unknown([message, inside]) == ["inside a node", "between nodes"]


ROOFLINE = Roofline(
    peak_flops=100.0,
    peak_flops_fp32=25.0,
    peak_flops_fp8=200.0,
    memory_bandwidth=10.0,
    efficiencies=Efficiencies(0.5, 0.8, 1.0),
)


def test_a_large_matmul_takes_its_flops():
    assert ROOFLINE.seconds({Operation(1000.0, 8, "fp16"): 1}) == pytest.approx(1000 / 50)


@pytest.mark.parametrize(("dtype", "reached"), [("fp32", 12.5), ("bf16", 50), ("fp8", 100)])
def test_a_matmul_is_as_fast_as_its_dtype(dtype, reached):
    assert ROOFLINE.seconds({Operation(1000.0, 8, dtype): 1}) == pytest.approx(1000 / reached)


def test_other_operations_take_their_traffic():
    assert ROOFLINE.seconds({Operation(0.0, 80): 1}) == pytest.approx(80 / 8)


def test_operations_follow_each_other():
    assert ROOFLINE.seconds({Operation(0.0, 80): 3, Operation(100.0, 8): 0.5}) == pytest.approx(30 + 1)
