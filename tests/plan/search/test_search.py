"""Search over made-up estimates and plans."""

from __future__ import annotations

import pytest

from plan.made_plan import GIB, RECIPE, plan, stage
from pretrain.plan.search import search as searching
from pretrain.plan.search.search import MOST_PLANS, SHOWN, search
from pretrain.recipe import make_recipe

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

    def trace_pieces(recipe, device, vocab_size, keys):
        planned.traced.append(set(keys))
        return dict.fromkeys(keys, "pieces")

    def layout_peak(recipe, device, choice, pieces):
        return GIB if planned.fits(choice) else 99 * GIB

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
    """The estimate takes all layouts for fitting, and none does: all of the first, the smallest, three of each more."""
    planned.enough = 1000
    said = []
    found = search(make_recipe(RECIPE), DEVICE, 8, 257, said.append)
    assert (found.best, found.fitting, found.enough) == ([], 0, None)
    assert [devices for devices, _ in planned.calls].count(8) == MOST_PLANS * SHOWN + 1
    assert all([devices for devices, _ in planned.calls].count(more) <= MOST_PLANS for more in (16, 32, 64, 128))
    assert "search: planning the smallest layout for 8 devices in full" in said


def test_more_devices_may_share_layers_too(planned):
    """Two heads' layers on two devices fit, and no other layout does."""
    planned.enough, planned.fits = 2, lambda choice: choice.tensor == 2
    found = search(make_recipe(RECIPE), DEVICE, 1, 257)
    assert planned.traced == [{(1, False)}, {(2, False), (2, True)}]
    assert found.enough[0] == found.enough[1].choice.tensor == 2
