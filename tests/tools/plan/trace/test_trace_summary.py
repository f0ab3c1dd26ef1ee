"""Parts of memory at the peak, of a trace that is made by hand."""

from __future__ import annotations

import pytest

from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.tools.plan.stage_plan import Message, Operation
from pretrain.tools.plan.trace.rank_trace import RankTrace
from pretrain.tools.plan.trace.storages import MemoryBlock, StepPlace
from pretrain.tools.plan.trace.trace_summary import MemoryCourse, peak_text, trace_costs
from pretrain.tools.plan.trace.work import Work

FORWARD = StepPlace(1, "forward-backward", 1, "decoder.layers.0")
BACKWARD = StepPlace(1, "forward-backward", 1, is_backward=True)
BUILT, UPDATE = StepPlace(), StepPlace(1, "optimizer")
BLOCKS = [
    MemoryBlock(100, False, BUILT, 0),  # 0: a weight
    MemoryBlock(200, False, BUILT, 1),  # 1: its gradient
    MemoryBlock(400, False, BUILT, 2),  # 2: its main weight
    MemoryBlock(1000, False, FORWARD, 10, 30),  # 3: kept for the backward pass
    MemoryBlock(50, False, FORWARD, 11, 12, is_workspace=True),
    MemoryBlock(70, False, BACKWARD, 20, 60),  # 5: a gradient that outlives the passes
    MemoryBlock(10, False, UPDATE, 41, 45),
    MemoryBlock(5000, True, BUILT, 3),  # 7: on the host
]


def trace(**values) -> RankTrace:
    made = {
        "rank": 0,
        "blocks": BLOCKS,
        "weights": frozenset({0}),
        "gradients": frozenset({1}),
        "steps": [(5, 40, 50)],
        "micro_batches": (1,),
        "work": Work(),
        "parameters": {},
        "kernels": KernelTable(backend="cpu", provider="", rows=()),
    }
    return RankTrace(**made | values)


def test_the_peak_is_where_most_is_allocated():
    course = MemoryCourse(trace())
    assert (course.peak, course.peak_bytes) == (20, 100 + 200 + 400 + 1000 + 70)
    assert course.newest_at_peak() is BACKWARD


def test_parts_at_the_peak():
    course = MemoryCourse(trace())
    assert course.parts(course.peak) == {"weights": 100, "gradients": 270, "optimizer": 400, "activations": 1000}
    assert course.parts(11)["workspace"] == 50
    assert course.parts(42)["optimizer"] == 410


def test_the_host_has_a_course_of_its_own():
    assert MemoryCourse(trace(), on_host=True).peak_bytes == 5000


def test_moments_follow_the_parts():
    """They begin and end with what is always there, and the peak is among them."""
    moments = MemoryCourse(trace()).moments()
    assert moments[0].parts == {"weights": 100, "gradients": 200, "optimizer": 400}
    assert max(sum(moment.parts.values()) for moment in moments) == 1770
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (None, "between the steps"),
        (UPDATE, "update of the weights"),
        (FORWARD, "forward pass 1: decoder.layers.0"),
        (BACKWARD, "a backward pass, after 1 forward pass had begun"),
        (
            StepPlace(1, "forward-backward", 3, "", "attention", is_backward=True),
            "a backward pass, after 3 forward passes had begun: attention",
        ),
    ],
)
def test_the_peak_in_words(place, text):
    assert peak_text(place) == text


def test_costs_of_a_micro_batch_are_the_difference_of_two_steps():
    """A step of one micro-batch and one of three: what they share comes once."""
    work = Work()
    matmul, sums = Operation(10.0, 4, "bf16"), Operation(0.0, 8)
    sent = Message("all-reduce", "data", 2, 64)
    for step, micro_batches in ((1, 1), (2, 3)):
        work.operations[StepPlace(step, "forward-backward", 1), matmul] = 2 * micro_batches
        work.operations[StepPlace(step, "forward-backward", 1, is_backward=True), matmul] = 4 * micro_batches + 1
        work.operations[StepPlace(step, "optimizer"), sums] = 5
        work.messages[StepPlace(step, "forward-backward"), sent] = 1
    costs = trace_costs(trace(work=work, steps=[(0, 0, 0), (5, 40, 50)], micro_batches=(1, 3)))
    assert costs.forward == {matmul: 2}
    assert costs.backward == {matmul: 4}
    assert costs.once == {matmul: 1, sums: 5}
    assert costs.messages == {}
    assert costs.messages_once == {sent: 1}


def test_a_step_of_one_micro_batch_has_its_update_too():
    """Both steps have as many micro-batches: what a micro-batch takes is that of the step; the update is besides."""
    work = Work()
    matmul, sums, sent = Operation(10.0, 4, "bf16"), Operation(0.0, 8), Message("all-gather", "data", 2, 64)
    for step in (1, 2):
        work.operations[StepPlace(step, "forward-backward", 1), matmul] = 2
        work.operations[StepPlace(step, "optimizer"), sums] = 5
        work.messages[StepPlace(step, "optimizer"), sent] = 1
    costs = trace_costs(trace(work=work, steps=[(0, 0, 0), (5, 40, 50)], micro_batches=(1, 1)))
    assert (costs.forward, costs.once, costs.messages_once) == ({matmul: 2}, {sums: 5}, {sent: 1})


def test_what_hooks_of_weights_allocate_are_gradients():
    """DeepSpeed's buckets die before the update."""
    bucket = MemoryBlock(
        300, False, StepPlace(1, "forward-backward", 1, is_backward=True, is_accumulation=True), 21, 39
    )
    assert MemoryCourse(trace(blocks=[*BLOCKS, bucket])).parts(22)["gradients"] == 200 + 70 + 300
