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
from pretrain.training.event import Event
from pretrain.training.events import Checkpoints
from pretrain.training.profiling import ProfileRequests, Profiling, require_profile
from pretrain.training.progress import Progress
from pretrain.training.reporting import trace_recording

pytestmark = pytest.mark.usefixtures("alone")


class Recording:
    """Keeps which steps it has seen."""

    made: ClassVar[list] = []
    errors: ClassVar[dict] = {}
    """Method -> what it raises."""

    def __init__(self, backend, folder, rank, first, names, *, memory):
        self.first, self.steps, self.memory = first, [], memory
        self.made.append(self)
        self._fail("start")

    def begin_step(self, iteration):
        self.steps.append(iteration)
        self._fail("begin_step")

    def end_step(self):
        self.steps.append("end")
        self._fail("end_step")

    def finish(self):
        self.steps.append("finish")
        self._fail("finish")
        return f"profile of {self.steps[:-1:2]}"

    def _fail(self, name):
        if name in self.errors:
            raise self.errors[name]


def alone_with(recipe, backend):
    return SimpleNamespace(
        plugins=SimpleNamespace(backend=backend),
        world=SimpleNamespace(rank=0, world_size=1),
        device=torch.device("cpu"),
        recipe=recipe,
    )


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
        setup = alone_with(run.recipe, backend or CpuBackend())
        requests = ProfileRequests()
        profiling = Profiling(run, setup, kernels=None, requests=requests, run_dir=tmp_path)
        return replace(run, events=(profiling, *run.events)), requests, notes

    return build


def steps():
    return [[step for step in recording.steps if isinstance(step, int)] for recording in Recording.made]


def test_the_steps_of_the_recipe_are_profiled_once(profiled):
    run, _, notes = profiled("profile={start: 3, steps: 2}")
    run.run()
    assert steps() == [[3, 4]]
    assert Recording.made[0].steps == [3, "end", 4, "end", "finish"]
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


class Rollback(Event):
    """Goes back to iteration 1 once, after iteration 4."""

    def __init__(self, progress):
        self.progress, self.is_due = progress, True

    def after_iteration(self, due):
        goes_back = self.is_due and due.iteration == 4
        if goes_back:
            self.progress.iteration, self.is_due = 1, False
        return goes_back


def test_a_rollback_to_before_a_profile_ends_it_and_its_steps_are_profiled_again(profiled):
    run, _, notes = profiled("profile={start: 3, steps: 3}")
    run = replace(run, events=(*run.events, Rollback(run.progress)))
    run.run()
    assert steps() == [[3, 4], [3, 4, 5]]
    assert notes == ["profile of [3, 4]", "profile of [3, 4, 5]"]


@pytest.mark.parametrize(
    ("part", "error", "reason"),
    [
        ("finish", OSError(28, "No space left on device"), "No space left on device"),
        ("finish", KeyError("ts"), "KeyError: 'ts'"),
        ("end_step", RuntimeError("CUPTI is\nbusy"), "RuntimeError: CUPTI is"),
        ("begin_step", MemoryError(), "MemoryError"),
        ("start", ImportError("no msprof"), "ImportError: no msprof"),
    ],
)
def test_no_error_of_a_profiler_ends_the_training_and_each_is_told_once(profiled, monkeypatch, part, error, reason):
    monkeypatch.setattr(Recording, "errors", {part: error})
    run, requests, notes = profiled("profile={start: 2, steps: 2}")
    assert run.run() == ""
    assert run.progress.iteration == 8
    (note,) = notes
    assert note.startswith("warning: the profile of rank 0 is missing in ")
    assert note.endswith(f", or not complete ({reason}). The training continues.")
    assert ("finish" in Recording.made[0].steps) == (part != "start")  # what was opened is closed
    monkeypatch.setattr(Recording, "errors", {})
    requests.agreed([1.0])
    run.progress.iteration = 4
    run.run()
    assert notes[1:] == ["profile of [5, 6]"]  # the next one has nothing of it


@pytest.mark.parametrize(
    ("done", "overrides", "why"),
    [
        (5, [], ("the run has passed iteration 5, the profile's last one. For one, send SIGUSR2, or set profile.start "
                "between 6 and 8.")),
        (1, ["train={train_samples: 12, train_iters: null, global_batch_size: 4, micro_batch_size: 4}"],
         "the training ends after iteration 4. For one, send SIGUSR2, or set profile.start between 2 and 4."),
        (4, [], None),  # its last step is still to come
        (8, [], None),  # no step is
    ],
)  # fmt: skip
def test_a_profile_that_never_comes_is_told_of_before_the_training(profiled, done, overrides, why):
    progress = Progress(iteration=done)
    run, _, notes = profiled("profile={start: 5, steps: 1}", *overrides, progress=progress)
    run.events[0].note_missing()
    assert notes == ([] if why is None else [f"profile.start: 5: no profile is taken: {why}"])


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


def test_a_rank_that_is_not_there_is_an_error_but_not_for_a_run_that_has_lost_nodes(make, tmp_path):
    setup = alone_with(make("profile.ranks=[0, 3]"), CpuBackend())
    with pytest.raises(
        RecipeError, match=r"profile.ranks: there is no rank 3: rank 0 is alone.\nName ranks of this run."
    ):
        require_profile(setup, tmp_path, resumed=False)
    require_profile(setup, tmp_path, resumed=True)


def test_a_device_without_a_profiler_of_its_own_says_so(make, tmp_path):
    setup = alone_with(make("profile.use_pytorch_profiler=false"), CpuBackend())
    with pytest.raises(
        BackendError, match=r"needs a profiler of the device; backend 'cpu' has none.\nLeave the key out"
    ):
        require_profile(setup, tmp_path, resumed=False)


def test_memory_that_is_not_recorded_is_told_of_before_the_training(profiled):
    run, _, notes = profiled("profile={start: 2, steps: 1, memory: true}")
    run.events[0].note_missing()
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
    memory = SimpleNamespace(
        start=lambda: calls.append("record memory"), stop=lambda file: calls.append(f"snapshot {file.name}")
    )
    monkeypatch.setattr(CpuBackend, "profiler", lambda self, folder: Maker(calls))
    monkeypatch.setattr(CpuBackend, "memory_recorder", lambda self: memory)
    monkeypatch.setattr(Maker, "range", lambda self, name: trace_recording.ExitStack(), raising=False)
    monkeypatch.setattr(trace_ranges, "named_ranges", lambda *_: trace_recording.ExitStack())
    run, _, notes = profiled("profile={start: 2, steps: 2, use_pytorch_profiler: false, memory: true}", backend=backend)
    run.run()
    assert calls == ["start", "record memory", "stop", "snapshot rank0-iteration2.memory.pickle"]
    assert notes == ["profiled by the maker"]
