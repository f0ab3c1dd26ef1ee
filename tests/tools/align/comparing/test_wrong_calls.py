"""Wrong calls: those of both sides alike, and the one that explains the first difference."""

from types import SimpleNamespace

import pytest

from pretrain.tools.align.comparing.compare import without_alike
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, AlignResult, Compared, WrongCall
from pretrain.tools.align.recording.folder import ModulePlace

ONE_RANK, TWO_RANKS, TWO_STAGES = (
    SimpleNamespace(
        manifest={"layout": {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}}
    )
    for tensor, pipeline in ((1, 1), (2, 1), (1, 2))
)


def wrong(side, error=0.01, call=0, rank=0, tick=5, phase=FORWARD):
    return WrongCall(
        order=(1, phase, 7, tick),
        side=side,
        rank=rank,
        place=ModulePlace(7, "input_layernorm"),
        operation="norm",
        what="output",
        error=error,
        explained=1e-5,
        call=call,
    )


def difference(ticks, phase=FORWARD):
    return Compared(
        order=(1, phase, 7, ticks[0]),
        place=ModulePlace(7, "mlp"),
        operation="linear",
        what="output",
        difference=1.0,
        explained=0.1,
        ticks=ticks,
    )


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        (wrong(1), True),
        (wrong(1, error=0.012), True),
        (wrong(1, error=0.05), False),
        (wrong(1, call=1), False),
        (wrong(1, rank=1), False),
    ],
    ids=["same", "about as much", "five times as much", "another call", "another rank"],
)
def test_both_sides_are_wrong_alike_at_the_same_call_by_about_as_much(other, is_alike):
    apart, alike = without_alike([wrong(0), other], (TWO_RANKS, TWO_RANKS))

    assert (len(apart), len(alike)) == ((0, 1) if is_alike else (2, 0))


def test_ranks_of_another_layout_may_be_wrong_alike():
    apart, alike = without_alike([wrong(0), wrong(1), wrong(1, rank=1)], (ONE_RANK, TWO_RANKS))

    assert (apart, len(alike)) == ([], 1)


def test_as_many_ranks_of_another_layout_may_too():
    apart, alike = without_alike([wrong(0), wrong(0, rank=1), wrong(1, rank=1)], (TWO_RANKS, TWO_STAGES))

    assert (apart, len(alike)) == ([], 2)


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
@pytest.mark.parametrize(("ticks", "is_explained"), [((9, 9), True), ((3, 9), True), ((9, 3), False)])
def test_a_cause_in_the_same_layer_comes_before_the_difference_on_its_own_side(ticks, is_explained, phase):
    outcome = AlignResult(compared=[difference(ticks, phase)], wrong=[wrong(1, tick=5, phase=phase)])

    assert outcome.is_explained_by_cause == is_explained
