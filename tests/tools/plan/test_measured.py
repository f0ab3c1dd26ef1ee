"""Calibration by a run: what it reached of the device's figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pretrain.errors import RunError
from pretrain.plugins.backend import Figures
from pretrain.tools.plan import plan as planning
from pretrain.tools.plan.device import MIDDLE, DeviceOptions, PlanDevice
from pretrain.tools.plan.plan import calibrated, read_measured
from pretrain.tools.plan.step_time import Range
from tools.plan.made_plan import RECIPE, TIME, plan

CARD = "NVIDIA A100-SXM4-80GB"
DEVICE = PlanDevice(backend_name="cuda", name=CARD, memory=None, peak_flops=1.0, figures=Figures())
TIMES = (9.0, 2.5, 2.0, 2.0, 3.0)


def run(folder, times=TIMES, devices=(CARD,) * 8, batch=16, after=0):
    """Write a run's files, and return its directory."""
    lines = [
        {"kind": "train", "iteration": number, "global_batch_size": batch, "seconds_per_iteration": seconds}
        for number, seconds in enumerate(times, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "environment.json").write_text(json.dumps({"devices": list(devices), "started_after": after}))
    (folder / "recipe.yml").write_text(json.dumps(RECIPE))
    return folder


def test_a_run_is_its_usual_iteration_without_the_start_up(tmp_path):
    found = read_measured(run(tmp_path))
    assert (found.seconds, found.device, found.ranks) == (2.25, CARD, 8)
    assert found.recipe.model.num_layers == RECIPE["model"]["num_layers"]


def test_of_a_resumed_run_the_part_that_ran_last_counts(tmp_path):
    """Its recipe and devices are those of that part, and the part before may have had others."""
    assert read_measured(run(tmp_path, times=(9.0, 2.0, 2.0, 9.0, 5.0, 6.0), after=3)).seconds == 5.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": (9.0, 2.5)}, "has too few logged intervals"),
        ({"batch": 4}, "has too few logged intervals with train.global_batch_size 16: 0"),
        ({"after": 3}, "16: 1, since it was resumed with changes after iteration 3"),
        ({"devices": ()}, "must name one kind of device, not: none"),
        ({"devices": (CARD, "NVIDIA H200")}, "must name one kind of device, not: NVIDIA A100-SXM4-80GB, NVIDIA H200"),
    ],
    ids=["two intervals", "a ramp-up's batch", "resumed", "no devices", "mixed devices"],
)
def test_what_tells_no_speed_is_refused(tmp_path, changes, message):
    with pytest.raises(RunError, match=message):
        read_measured(run(tmp_path, **changes))


@pytest.fixture
def planned(monkeypatch):
    """Plan every run with a step of 1.8 s at the middle of the assumed shares."""
    asked = []

    def make_plan(recipe, device, *, devices, vocab_size):
        asked.append((device.reached.best, device.reached.worst, devices, vocab_size))
        return plan(time=replace(TIME, seconds=Range(1.8, 1.8)))

    monkeypatch.setattr(planning, "make_plan", make_plan)
    monkeypatch.setattr(planning, "find_device", lambda recipe, wanted, ranks: DEVICE)
    return asked


def test_all_shares_are_the_middle_times_planned_by_measured(tmp_path, planned):
    """1.8 s planned and 2.25 s measured: 0.8 of the middle."""
    reached = calibrated(DEVICE, DeviceOptions(name=CARD), read_measured(run(tmp_path)), 257).reached
    assert planned == [(MIDDLE, MIDDLE, 8, 257)]
    assert reached.best == reached.worst
    assert reached.best.matmul == pytest.approx(0.8 * MIDDLE.matmul)
    assert reached.best.memory == pytest.approx(0.8 * MIDDLE.memory)
    assert reached.best.links == pytest.approx(0.8 * MIDDLE.links)
    assert reached.measured_in == f"{tmp_path} (2.25 s an iteration on 8 devices)"


def test_a_driver_puts_the_maker_before_the_name(tmp_path, planned):
    device = replace(DEVICE, name="A100-SXM4-80GB")
    assert calibrated(device, DeviceOptions(), read_measured(run(tmp_path)), 257).reached.measured_in


def test_a_run_on_another_device_is_refused(tmp_path, planned):
    other = replace(DEVICE, name="NVIDIA H200")
    with pytest.raises(RunError, match=f"trained on {CARD}; this plan is for NVIDIA H200"):
        calibrated(other, DeviceOptions(), read_measured(run(tmp_path)), 257)
    assert planned == []
