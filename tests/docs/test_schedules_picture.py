"""The picture of the schedules is that of the scheduler, and has all of them."""

from __future__ import annotations

import pytest

from structure.sources import ROOT

FOLDER = ROOT / "docs" / "pictures"


def test_the_picture_is_drawn_from_the_scheduler(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import schedules

    assert (FOLDER / "schedules.svg").read_text(encoding="utf-8") == schedules.draw()
    linear = schedules.rates(schedules.schedules()["linear"])
    assert (max(linear), linear[10], linear[-1]) == pytest.approx((1, 1, 0.1))
