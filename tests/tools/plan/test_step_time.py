"""Estimated time of a step, of stages with round costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.plugins.backend import Figures
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.device import BEST, WORST, Efficiencies, PlanDevice
from pretrain.tools.plan.stage_plan import Costs, Message, ModuleRow, Operation, StagePlan
from pretrain.tools.plan.step_time import step_parts, step_time
from tools.plan.made_plan import RECIPE

ALL = Efficiencies(1.0, 1.0, 1.0)
DEVICE = PlanDevice(
    backend_name="cuda",
    name="round",
    is_named=True,
    memory=None,
    peak_flops=1.0,
    figures=Figures(memory_bandwidth=1.0, link_bandwidth=1.0, node_bandwidth=1.0, devices_per_node=8),
)
NOTHING = Costs(forward={}, backward={}, once={}, messages={}, messages_once={})
WORDS = ModuleRow(name="embedding.word_embeddings", count=1, parameters=256 * 64, weights=0, activations=0)


def stage(number, *, forward=1.0, backward=2.0, **costs):
    """Return a stage whose passes take so many seconds where nothing is lost."""
    passes = {"forward": {Operation(forward, 0): 1}, "backward": {Operation(backward, 0): 1}}
    return StagePlan(
        stage=number,
        rank=number,
        layers="2",
        parameters=0,
        parts={},
        host_bytes=0,
        peak_at="",
        micro_batches=1,
        course=(),
        modules=(WORDS,),
        costs=replace(NOTHING, **(passes | costs)),
    )


def parts(stages, *overrides):
    recipe = make_recipe(RECIPE, overrides)
    costs = {each.stage: each.costs for each in stages}
    return step_parts(recipe, DEVICE, lay_out(recipe, recipe.model_parallel_size), costs, ALL)


def test_equal_stages_wait_as_narayanan_et_al_say():
    """Micro-batches + stages - 1 passes: equation of section 2.2.1 of arXiv:2104.04473."""
    found = parts([stage(0), stage(1), stage(3)])
    assert found.computing == 16 * 3
    assert found.bubble == 3 * 3
    assert found.seconds == (16 + 4 - 1) * 3


def test_chunks_divide_the_bubble():
    assert parts([stage(0), stage(1), stage(3)], "parallel.virtual_pipeline_model_parallel_size=2").bubble == 3 * 3 / 2


def test_the_slowest_stage_is_busy_and_the_others_are_waited_for():
    found = parts([stage(0), stage(1), stage(3, forward=2.0)])
    assert (found.computing, found.bubble) == (16 * 4, 3 * 3)


def test_untraced_stages_take_the_time_of_the_one_before_by_their_layers():
    found = parts([stage(0), stage(1), stage(3)], "parallel.pipeline_layers=[1,2,4,1]")
    assert (found.computing, found.bubble) == (16 * 6, 3 * 3)


def test_messages_between_tensor_ranks_are_waited_for_unless_they_overlap():
    """A third of the backward pass hides those that overlap."""
    message = Message("broadcast", "tensor", 2, 1)
    waited = stage(0, messages={message: 1.0})
    hidden = stage(0, messages={replace(message, overlaps=True): 1.0})
    one = "parallel.pipeline_model_parallel_size=1"
    assert parts([waited], one).communication == 16
    assert parts([hidden], one).communication == pytest.approx(16 * (1 - 2 / 3))


def test_what_stages_receive_is_waited_for_but_under_the_interleaved_schedule():
    received = [stage(number, messages={Message("receive", "pipeline", 4, 1): 1.0}) for number in (0, 1, 3)]
    chunks = "parallel.virtual_pipeline_model_parallel_size=2"
    assert parts(received).communication == 16
    assert parts(received, chunks).communication == 0
    assert parts(received, chunks, "parallel.overlap_p2p_comm=false").communication == 16


def test_sums_of_gradients_that_overlap_are_hidden_behind_one_micro_batch():
    message = Message("broadcast", "data", 2, 1)
    one = "parallel.pipeline_model_parallel_size=1"
    assert parts([stage(0, messages_once={message: 4.0})], one).communication == 4
    assert parts([stage(0, messages_once={replace(message, overlaps=True): 4.0})], one).communication == 1


def test_the_update_counts_once_and_not_at_all_on_the_host():
    update = stage(0, once={Operation(0.0, 5): 1.0})
    assert parts([update], "parallel.pipeline_model_parallel_size=1").update == 5
    offload = ("engine.name=deepspeed", "engine.zero.stage=1", "engine.zero.offload_optimizer.device=cpu")
    assert parts([update], "parallel.pipeline_model_parallel_size=1", *offload).update == 0


def result(device=DEVICE, *overrides):
    recipe = make_recipe(RECIPE, overrides)
    return step_time(recipe, device, lay_out(recipe, 4), [stage(0), stage(1), stage(3)])


def test_the_range_is_that_of_the_stated_efficiencies():
    time = result()
    assert (time.seconds.low, time.seconds.high) == pytest.approx((57 / BEST.matmul, 57 / WORST.matmul))
    assert (time.best, time.worst) == (BEST, WORST)
    assert time.tokens_per_second.high == pytest.approx(16 * 32 / 4 / time.seconds.low)
    assert time.bubble == pytest.approx(3 / 19)


def test_days_and_device_hours_are_those_of_the_whole_training():
    time = result()
    assert time.tokens == 1000 * 16 * 32
    assert time.days.low == pytest.approx(1000 * time.seconds.low / 86400)
    assert time.device_hours.low == pytest.approx(time.days.low * 24 * 4)


def test_model_flops_leave_recompute_out():
    """Those of `pretrain.report.flops`, with the embedding's rows that were traced: 256."""
    seen = (32 + 1) / 2  # keys, in the mean
    model_flops = 3 * 32 * (8 * (24 * 64 * 64 + 4 * seen * 64) + 2 * 64 * 256) * 16 / 4
    time = result()
    assert time.flops_per_second.low == pytest.approx(model_flops / time.seconds.high)
    assert time.peak_share == time.flops_per_second


def test_muons_matmuls_in_fp32_are_said_to_count_as_others_where_their_speed_is_unknown():
    for name, known, said in (("muon", None, 1), ("muon", 1.0, 0), ("adamw", None, 0)):
        recipe = make_recipe(RECIPE, ["precision.dtype=bf16", f"optimizer.name={name}"])
        time = step_time(
            recipe, replace(DEVICE, peak_flops_fp32=known), lay_out(recipe, 4), [stage(0), stage(1), stage(3)]
        )
        assert sum("Muon's matmuls are in fp32" in line for line in time.left_out) == said


def test_without_a_peak_or_a_memory_bandwidth_there_is_no_estimate():
    assert result(replace(DEVICE, peak_flops=None)) is None
    assert result(replace(DEVICE, figures=Figures(link_bandwidth=1.0))) is None


def test_links_of_unknown_speed_are_said_to_be_left_out():
    recipe = make_recipe(RECIPE)
    device = replace(DEVICE, figures=Figures(memory_bandwidth=1.0, devices_per_node=2))
    sending = stage(0, messages={Message("receive", "pipeline", 4, 1): 1.0})
    time = step_time(recipe, device, lay_out(recipe, 4), [sending, stage(1), stage(3)])
    assert time.communication == 0
    assert time.unknown_links == [
        "messages between nodes count as 0: their speed is unknown for round; set it with --network"
    ]
