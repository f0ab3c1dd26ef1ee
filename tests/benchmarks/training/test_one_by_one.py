"""Systems that are measured one after the other: one that dies does not affect the others."""

from __future__ import annotations

import pytest

from structure.sources import ROOT

MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."
DIES = {"memory": (2, f"Traceback:\n{MEMORY}\n"), "broken": (0, "KeyError: 1\n")}
"""System -> after how many steps, and what it writes to standard error."""


@pytest.fixture
def one_by_one(monkeypatch):
    """The module, with workers that die in the step that is named, after they have written to standard error."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.training import one_by_one

    class Worker:
        living = 0

        def __init__(self, name, setting, errors):
            self.errors, self.steps, self.about = errors, 0, {"spec": name}
            self.dies_at, self.says = DIES.get(name, (None, ""))
            Worker.living += 1
            assert Worker.living == 1, "two at once"

        def step(self):
            if self.steps == self.dies_at:
                self.errors.write(self.says)
                raise one_by_one.Died(1)
            self.steps += 1
            return 0.5 * self.steps, 3.0

        def close(self):
            Worker.living -= 1

    monkeypatch.setattr(one_by_one, "Worker", Worker)
    return one_by_one


@pytest.fixture
def setting():
    class Setting:
        tokens = 100

    return Setting()


def test_each_ends_before_the_next_begins_and_two_steps_are_not_counted(one_by_one, setting):
    found = one_by_one.measure(["ours", "theirs"], setting, 3)
    assert found["ours"] == {"seconds": [1.5, 2.0, 2.5], "tokens_per_second": 50.0, "last_loss": 3.0, "spec": "ours"}
    assert one_by_one.ratios(found, "ours") == {"speed over theirs": 1.0}


def test_calls_that_run_out_of_memory_or_fail_are_reported(one_by_one, setting):
    found = one_by_one.measure(["memory", "broken", "ours"], setting, 3)
    assert found["memory"] == {"out_of_memory": MEMORY}
    assert found["broken"] == {"failed": ["KeyError: 1"]}
    assert found["ours"]["tokens_per_second"] == 50.0
    assert one_by_one.ratios(found, "ours") == {}
    assert one_by_one.ratios(found, "memory") == {}


def test_a_baseline_that_is_not_competitive_has_no_ratio(one_by_one):
    found = {"ours": {"seconds": [1.0]}, "theirs": {"seconds": [3.0], "no_rival": "none: it lacks a kernel"}}
    assert one_by_one.ratios(found, "ours") == {"speed over theirs": "none: it lacks a kernel"}


def test_a_system_that_cannot_start_is_a_failure_of_its_own(monkeypatch, setting):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.training import one_by_one

    setting.to_json = lambda: "{}"
    found = one_by_one.measure(["not_there"], setting, 1)
    assert "No module named benchmarks.training.systems.not_there" in found["not_there"]["failed"][-1]
