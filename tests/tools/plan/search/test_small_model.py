"""Searched layouts of a small model against full plans of them."""

from __future__ import annotations

import pytest

from tools.plan.published.own_process import answer
from tools.plan.search.small_model import CHOICES, MEMORY


@pytest.mark.full
def test_the_peak_is_that_of_the_full_plan_within_a_tenth():
    assert answer("tools.plan.search.small_model", "peaks") == [pytest.approx(1, abs=0.1)] * len(CHOICES)


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
    assert found["refused"]["more ranks than one, which are not in one node, would share a layer"] == 2
