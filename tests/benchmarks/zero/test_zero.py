"""The counts of the ZeRO benchmarks, and the results that docs/zero.md shows."""

from __future__ import annotations

import threading

import pytest
import torch

from structure.sources import ROOT

MIB = 2**20


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_theory_is_that_of_the_papers_first_figure(stage, gigabytes):
    from benchmarks.zero.zero_theory import split

    states = split(stage, 64, weights=2, gradients=2, optimizer=12)
    assert 7.5 * states == pytest.approx(gigabytes, abs=0.05)


def test_the_theory_of_deepspeeds_stages_counts_the_copy_that_they_step():
    from benchmarks.zero.zero_theory import theory

    assert [theory(f"ZeRO-{stage}", "fp32", 2) for stage in range(4)] == [16, 14, 12, 10]
    assert [theory(system, "fp32", 2) for system in ("megatron", "megatron ZeRO-1")] == [16, 12]


def test_allocations_have_the_peak_and_the_end_of_a_phase():
    from benchmarks.zero.zero_allocations import Allocations

    with Allocations() as allocations:
        with allocations.phase("one"):
            kept = torch.empty(MIB, dtype=torch.uint8)
            gone = torch.empty(2 * MIB, dtype=torch.uint8)
            del gone
        with allocations.phase("two"):
            more = torch.empty(MIB // 2, dtype=torch.uint8)
    assert kept.nbytes + more.nbytes == allocations.after("two") == allocations.peak("two") == 1.5 * MIB
    assert allocations.peak("one") == 3 * MIB
    assert allocations.after("one") == MIB


def test_a_block_that_another_thread_frees_no_longer_counts():
    from benchmarks.zero.zero_allocations import Allocations

    held = []
    with Allocations() as allocations:
        with allocations.phase("one"):
            held.append(torch.empty(MIB, dtype=torch.uint8))
        other = threading.Thread(target=held.clear)
        other.start()
        other.join()
        with allocations.phase("two"):
            kept = torch.empty(2 * MIB, dtype=torch.uint8)
    assert allocations.after("one") == MIB
    assert allocations.after("two") == kept.nbytes


def test_the_page_shows_the_results_that_are_kept():
    from benchmarks.zero.zero_tables import PAGE, with_tables

    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page)
