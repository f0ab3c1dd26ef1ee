"""The pictures of schedules and optimizers are those of the scheduler, and of the losses that are kept."""

from __future__ import annotations

import json

import pytest

from structure.sources import ROOT

FOLDER = ROOT / "docs" / "pictures"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


def test_the_schedules_are_drawn_from_the_scheduler():
    import schedules

    assert (FOLDER / "schedules.svg").read_text(encoding="utf-8") == schedules.draw()
    linear = schedules.rates(schedules.schedules()["linear"])
    assert (max(linear), linear[10], linear[-1]) == pytest.approx((1, 1, 0.1))


def test_the_optimizers_are_drawn_from_losses_of_three_rates_each_of_which_muons_is_lower():
    import optimizers

    kept = json.loads((FOLDER / "optimizers.json").read_text(encoding="utf-8"))
    assert (FOLDER / "optimizers.svg").read_text(encoding="utf-8") == optimizers.draw(kept)
    assert {name: len(curves) for name, curves in kept.items()} == {"adamw": 3, "muon": 3}
    adamw, muon = (kept[name][optimizers.best(kept[name])] for name in ("adamw", "muon"))
    assert muon["valid"][-1][0] == adamw["valid"][-1][0] == 500
    assert muon["valid"][-1][1] < adamw["valid"][-1][1]
