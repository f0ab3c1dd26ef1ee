"""When a profile is taken, and what is told of it, with recordings that are made up."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError, RecipeError
from pretrain.training.events import Checkpoints
from pretrain.training.profiling import ProfileRequests, Profiling
from pretrain.training.reporting import trace_recording

pytestmark = pytest.mark.usefixtures("alone")


class Recording:
    """Keeps which steps it has seen."""

    made: ClassVar[list] = []
    error = None

    def __init__(self, backend, folder, rank, first, names, *, memory):
        self.first, self.steps, self.memory = first, [], memory
        self.made.append(self)

    def begin_step(self, iteration):
        self.steps.append(iteration)

    def end_step(self):
        self.steps.append("end")

    def finish(self):
        if self.error is not None:
            raise self.error
        return f"profile of {self.steps[::2]}"


@pytest.fixture
def profiled(training, tmp_path, monkeypatch):
    """Make a training with the event first, and the requests that it answers."""
    monkeypatch.setattr(Recording, "made", [])
    monkeypatch.setattr(trace_recording, "TorchRecording", Recording)

    def build(*overrides, backend=None, **given):
        run = training("train.train_iters=8", "evaluation.interval=0", *overrides, **given).without(Checkpoints)
        notes = []
        monkeypatch.setattr(run.meter.logger, "note", notes.append)
        run.engine.models = []
        setup = SimpleNamespace(
            plugins=SimpleNamespace(backend=backend or CpuBackend()),
            world=SimpleNamespace(rank=0),
            device=torch.device("cpu"),
            recipe=run.recipe,
        )
        requests = ProfileRequests()
        profiling = Profiling(run, setup, kernels=None, requests=requests, run_dir=tmp_path)
        return replace(run, events=(profiling, *run.events)), requests, notes

    return build


def steps():
    return [recording.steps[::2] for recording in Recording.made]


def test_the_steps_of_the_recipe_are_profiled_once(profiled):
    run, _, notes = profiled("profile={start: 3, steps: 2}")
    run.run()
    assert steps() == [[3, 4]]
    assert Recording.made[0].steps == [3, "end", 4, "end"]
    assert notes == ["profile of [3, 4]"]


@pytest.mark.parametrize("overrides", [[], ["profile.ranks=[0]"], ["profile={start: 3, steps: 2, ranks: [1]}"]])
def test_without_steps_and_on_other_ranks_nothing_is_recorded(profiled, overrides):
    run, _, notes = profiled(*overrides)
    run.run()
    assert (Recording.made, notes) == ([], [])


def test_a_profile_that_the_training_ends_has_the_steps_until_then(profiled):
    run, _, notes = profiled("profile={start: 7, steps: 5}")
    run.run()
    assert (steps(), notes) == ([[7, 8]], ["profile of [7, 8]"])


def test_a_training_that_leaves_writes_its_profile_before(profiled):
    run, _, notes = profiled("profile={start: 2, steps: 5}", said=["", "", "SIGTERM"])
    run.run()
    assert steps() == [[2, 3]]
    assert notes == ["profile of [2, 3]"]


@pytest.mark.parametrize(
    ("overrides", "expected"), [([], [[3, 4, 5]]), (["profile={start: 6, steps: 2}"], [[3, 4], [6, 7]])]
)
def test_a_request_profiles_the_next_steps_and_leaves_those_of_the_recipe(profiled, overrides, expected):
    run, requests, _ = profiled(*overrides)
    asked = iter([0, 2])  # ranks that were asked, as the exchange sums them after each iteration
    run = replace(
        run,
        stopping=SimpleNamespace(reason=lambda: requests.agreed([float(next(asked, 0))]) or "", settle=lambda: None),
    )
    run.run()
    assert steps() == expected


def test_a_request_that_comes_during_a_profile_is_the_same_one(profiled):
    run, requests, _ = profiled("profile={start: 2, steps: 2}")
    asked = iter([0, 1, 1])
    run = replace(
        run,
        stopping=SimpleNamespace(reason=lambda: requests.agreed([float(next(asked, 0))]) or "", settle=lambda: None),
    )
    run.run()
    assert steps() == [[2, 3]]


def test_a_full_disk_ends_no_training_and_is_told_once(profiled, monkeypatch):
    monkeypatch.setattr(Recording, "error", OSError(28, "No space left on device"))
    run, _, notes = profiled("profile={start: 2, steps: 2}")
    assert run.run() == ""
    assert run.progress.iteration == 8
    (note,) = notes
    assert note.startswith("warning: the profile of rank 0 cannot be written into ")
    assert note.endswith("(No space left on device). The training continues.")


def test_sigusr2_is_a_vote_of_this_rank_once():
    before = signal.getsignal(signal.SIGUSR2)
    with ProfileRequests() as requests:
        assert requests.own() == [0.0]
        os.kill(os.getpid(), signal.SIGUSR2)
        assert [requests.own(), requests.own()] == [[1.0], [0.0]]
        requests.agreed([3.0])
        requests.agreed([0.0])
        assert [requests.take(), requests.take()] == [True, False]
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_rank_that_is_not_there_is_an_error_but_not_for_a_run_that_has_lost_nodes(profiled):
    run, _, _ = profiled("profile.ranks=[0, 3]")
    with pytest.raises(
        RecipeError, match=r"profile.ranks: there is no rank 3: rank 0 is alone.\nName ranks of this run."
    ):
        run.events[0].check(resumed=False)
    run.events[0].check(resumed=True)


def test_a_device_without_a_profiler_of_its_own_says_so(profiled):
    run, _, _ = profiled("profile.use_pytorch_profiler=false")
    with pytest.raises(
        BackendError, match=r"needs a profiler of the device; backend 'cpu' has none.\nLeave the key out"
    ):
        run.events[0].check(resumed=False)


def test_memory_that_is_not_recorded_is_told_of_before_the_training(profiled):
    run, _, notes = profiled("profile={start: 2, steps: 1, memory: true}")
    run.events[0].check(resumed=False)
    (note,) = notes
    assert note.startswith(
        "profile.memory: backend 'cpu' keeps no record of its allocations: there will be no snapshot"
    )
    run.run()
    assert Recording.made[0].memory


class Maker:
    """A device's own profiler that keeps its calls."""

    def __init__(self, calls):
        self.calls = calls

    def start(self):
        self.calls.append("start")
        return "profiled by the maker"

    def stop(self):
        self.calls.append("stop")


def test_the_devices_own_profiler_is_started_and_stopped(profiled, monkeypatch):
    from pretrain.training.reporting import trace_ranges

    calls = []
    backend = CpuBackend()
    monkeypatch.setattr(CpuBackend, "profiler", lambda self, folder: Maker(calls))
    monkeypatch.setattr(Maker, "range", lambda self, name: trace_recording.ExitStack(), raising=False)
    monkeypatch.setattr(trace_ranges, "named_ranges", lambda *_: trace_recording.ExitStack())
    run, _, notes = profiled("profile={start: 2, steps: 2, use_pytorch_profiler: false}", backend=backend)
    run.run()
    assert calls == ["start", "stop"]
    assert notes == ["profiled by the maker"]
