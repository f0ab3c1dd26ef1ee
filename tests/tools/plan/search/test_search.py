"""Search over made-up estimates and plans."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.plan.search import search as searching
from pretrain.tools.plan.search.search import MOST_PLANS, SHOWN, search
from pretrain.tools.plan.search.trace_pieces import PiecesKey
from pretrain.tools.plan.step_time import Range
from tools.plan.made_plan import GIB, RECIPE, plan, stage
from tools.plan.published.own_process import answer
from tools.plan.search.small_model import CHOICES, MEMORY, WITH_EXPERTS

DEVICE = plan().device
FITS, TOO_LARGE = plan(), plan(stage(0, 33))


@pytest.fixture
def planned(monkeypatch):
    """Devices and tensor-parallel size of each full plan, none of which fits on fewer devices than `enough`."""
    calls = []

    def make_plan(recipe, device, *, devices, vocab_size):
        calls.append((devices, recipe.parallel.tensor_model_parallel_size))
        return FITS if devices >= planned.enough else TOO_LARGE

    planned = type("Planned", (), {"calls": calls, "enough": 1, "traced": [], "fits": lambda choice: True})
    planned.peak = lambda choice: GIB

    def trace_pieces(recipe, device, vocab_size, keys):
        planned.traced.append(set(keys))
        return dict.fromkeys(keys, "pieces")

    def layout_peak(recipe, device, choice, pieces):
        return planned.peak(choice) if planned.fits(choice) else 99 * GIB

    monkeypatch.setattr(searching, "trace_pieces", trace_pieces)
    monkeypatch.setattr(searching, "layout_peak", layout_peak)
    monkeypatch.setattr(searching, "estimated_seconds", lambda *_: None)
    monkeypatch.setattr(searching, "make_plan", make_plan)
    return planned


def test_what_takes_long_is_said_before(planned):
    said = []
    assert len(search(make_recipe(RECIPE), DEVICE, 8, 257, said.append).best) == SHOWN
    assert said == [
        "search: tracing a layer with tensor-parallel size 1, 2, 4",
        *(f"search: planning layout {number} of {SHOWN} for 8 devices in full" for number in range(1, SHOWN + 1)),
    ]


def test_full_plans_are_at_most_three_for_each_that_is_shown(planned):
    """The estimate takes all layouts for fitting, and none does: the smallest is among those of the first number."""
    planned.enough = 1000
    found = search(make_recipe(RECIPE), DEVICE, 8, 257, print)
    assert (found.best, found.fitting, found.enough) == ([], 0, None)
    assert (found.planned, found.given_up) == (MOST_PLANS * SHOWN, found.tried - MOST_PLANS * SHOWN)
    assert [devices for devices, _ in planned.calls].count(8) == MOST_PLANS * SHOWN
    assert all([devices for devices, _ in planned.calls].count(more) <= MOST_PLANS for more in (16, 32, 64, 128))


def test_the_smallest_layout_is_planned_where_none_fits_by_the_estimate(planned):
    planned.enough, planned.fits = 1000, lambda choice: False
    said = []
    found = search(make_recipe(RECIPE), DEVICE, 8, 257, said.append)
    assert (found.planned, found.given_up, found.fitting) == (1, 0, 0)
    assert "search: planning the smallest layout for 8 devices in full" in said


def test_after_the_fastest_have_failed_the_smallest_are_planned(planned, monkeypatch):
    """The smallest take one micro-batch for each step and recompute all, and are the slowest."""
    planned.peak = lambda choice: GIB + choice.micro_batch + 100 * (choice.recompute != "full")
    monkeypatch.setattr(
        searching,
        "estimated_seconds",
        lambda recipe, device, choice, pieces: Range(*(2.0 / choice.micro_batch + (choice.recompute == "full"),) * 2),
    )
    monkeypatch.setattr(
        searching,
        "make_plan",
        lambda recipe, *_, **__: (
            FITS if recipe.recompute.granularity == "full" and recipe.train.micro_batch_size == 1 else TOO_LARGE
        ),
    )
    found = search(make_recipe(RECIPE), DEVICE, 8, 257, print)
    assert {(each.choice.micro_batch, each.choice.recompute) for each in found.best} == {(1, "full")}
    assert (len(found.best), found.planned, found.given_up) == (SHOWN, 2 * SHOWN, 0)


def test_more_devices_may_share_layers_too(planned):
    """Two heads' layers on two devices fit, and no other layout does."""
    planned.enough, planned.fits = 2, lambda choice: choice.tensor == 2
    found = search(make_recipe(RECIPE), DEVICE, 1, 257, print)
    assert planned.traced == [{PiecesKey(1, False)}, {PiecesKey(2, False), PiecesKey(2, True)}]
    assert found.enough[0] == found.enough[1].choice.tensor == 2


def test_the_number_of_devices_that_is_tried_is_said(monkeypatch):
    said, planned = [], []

    def make_plan(recipe, device, *, devices, vocab_size):
        planned.append(devices)
        return plan() if devices >= 12 else plan(stage(0, 33))

    monkeypatch.setattr(searching, "make_plan", make_plan)
    recipe = make_recipe(RECIPE, ("train.global_batch_size=48",))
    assert searching.enough_devices(recipe, plan().device, 257, said.append) == 12
    assert said[:2] == ["it does not fit on 4 devices; looking for a number that is enough", "trying 192 devices"]
    assert len(said) == 1 + len(planned)


@pytest.mark.full
def test_the_peak_is_that_of_the_full_plan_within_a_tenth():
    assert answer("tools.plan.search.small_model", "peaks") == [pytest.approx(1, abs=0.1)] * len(CHOICES)


@pytest.mark.full
@pytest.mark.parametrize("task", ["peaks_with_experts", "peaks_with_some_experts"])
def test_the_peak_of_a_model_with_experts_is_too(task):
    found = answer("tools.plan.search.small_model", task)
    assert found == [pytest.approx(1, abs=0.1)] * len(WITH_EXPERTS)


@pytest.mark.full
def test_the_order_on_the_cpu_is_the_measured_one():
    """Recomputation costs time; micro-batches of 4 cost less than four of 1 for as many samples."""
    found = answer("tools.plan.search.small_model", "seconds")
    assert found["four"] < found["none"] < found["full"]


@pytest.mark.full
def test_a_search_shows_the_fastest_that_fit_and_counts_the_rest():
    found = answer("tools.plan.search.small_model", "found")
    assert 0 < found["fitting"] < found["tried"]
    assert 0 < len(found["best"]) <= 5
    times = [each["time"]["seconds"]["high"] for each in found["best"]]
    assert times == sorted(times)
    assert all(each["fits"] and each["peak_bytes"] <= MEMORY for each in found["best"])
    assert found["nearest"] is None
    assert found["refused"]["a tensor-parallel group would span nodes of 1 device"] == 2
