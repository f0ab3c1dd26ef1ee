"""Jobs of ranks, to train or to evaluate: plain values, sent to other processes as JSON."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pretrain.data.needed import SampleCounts
from pretrain.errors import DamageError
from pretrain.exit_codes import End
from pretrain.launch.one_recipe import require_one_recipe
from pretrain.launch.preparation import PreparedRun, prepare_run, prepare_together
from pretrain.launch.process_exit import early_exit_fails
from pretrain.launch.rank0_broadcast import agree_on_restart_count
from pretrain.launch.run_directory import holds_run
from pretrain.launch.start_checks import Start, Where, require_inputs, require_startable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


TRAIN = "pretrain.training.run:train"


class TrainFn(Protocol):
    """The composition root of a training."""

    def __call__(self, recipe: Recipe, *, backend_name: str, run_dir: Path, resume: bool, world: World) -> End:
        """Train, and return how that has ended; called once on every rank."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Run as its ranks receive it."""

    recipe: str
    overrides: tuple[str, ...] = ()  # "section.key=value"
    backend: str  # value of `--backend`
    run_dir: str | None  # None: a new one below runs/
    resume: Resume = "no"  # value of `--resume`; "run" or "no" once the job is prepared
    prepared: bool = False  # the launcher has called `prepare_run`; otherwise rank 0 does
    train: str = TRAIN  # "module:function"

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job of a line that `to_json` made."""
        values = json.loads(text)
        return cls(**{**values, "overrides": tuple(values["overrides"])})

    def arguments(self) -> list[str]:
        """Return the job as arguments of `pretrain`; without `prepared` and `train`, which have none."""
        overrides = [word for override in self.overrides for word in ("--set", override)]
        run_dir = [] if self.run_dir is None else ["--run-dir", self.run_dir]
        resume = {"no": [], "run": ["--resume"], "auto": ["--resume", "auto"]}[self.resume]
        return ["run", self.recipe, "--backend", self.backend, *overrides, *run_dir, *resume]

    def prepared_by_launcher(self, recipe: Recipe, lock: ExitStack) -> Job:
        """Prepare the run, whose directory `lock` holds; return the job with what was decided."""
        given = Path(self.run_dir) if self.run_dir else None
        return self.as_prepared(prepare_run(recipe, given, lock, self.resume))

    def as_prepared(self, prepared: PreparedRun) -> Job:
        """Return the job with what `prepare_run` has decided."""
        resume: Resume = "run" if prepared.resume else "no"
        return dataclasses.replace(self, run_dir=str(prepared.run_dir), resume=resume, prepared=True)

    def started_again(self) -> Job:
        """Return a prepared job for a start after a failure: it resumes what is in its run directory."""
        resume: Resume = "run" if holds_run(Path(str(self.run_dir))) else "no"
        return dataclasses.replace(self, resume=resume)

    def run(self, world: World) -> End:
        """Train in this process as one rank of `world`, whose variables `env://` finds; return how that has ended."""
        from pretrain.recipe import load_recipe  # noqa: PLC0415  not needed to describe a job

        os.environ.update(world.environment())
        agree_on_restart_count(world)
        recipe = load_recipe(self.recipe, self.overrides)
        with early_exit_fails(), ExitStack() as lock:
            if self.run_dir and self.prepared:
                prepared = PreparedRun(Path(self.run_dir), self.resume == "run")
            else:
                given = Path(self.run_dir) if self.run_dir else None
                prepared = prepare_together(recipe, given, world, lock, self.resume)
            self._require_start(recipe, prepared, world)
            train = self._entry()
            return train(
                recipe, backend_name=self.backend, run_dir=prepared.run_dir, resume=prepared.resume, world=world
            )

    def _require_start(self, recipe: Recipe, prepared: PreparedRun, world: World) -> None:
        """Make rank 0's checks, and compare ranks that do not have their job from one launcher; all ranks call it."""
        start = Start(recipe=recipe, run_dir=prepared.run_dir, resume="run" if prepared.resume else "no")

        def check() -> None:
            with suppress(DamageError):  # the ranks read the files together, and name the newest intact checkpoint
                require_startable(start, Where.RANK0)

        if world.world_size > world.local_world_size or (world.world_size > 1 and not self.prepared):
            require_one_recipe(recipe, self.backend, world, check)
        elif world.rank == 0:
            check()

    def _entry(self) -> TrainFn:
        module, _, function = self.train.partition(":")
        entry: TrainFn = getattr(importlib.import_module(module), function)
        return entry


EVALUATE = "pretrain.training.run:evaluate"
GENERATE = "pretrain.training.run:generate"
EXAMINE = "pretrain.tools.doctor.examination:examine"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardJob:
    """Evaluation, generation or examination as its ranks receive it; it has no run directory."""

    recipe: str
    overrides: tuple[str, ...] = ()
    backend: str
    function: str  # "module:function", called with recipe, backend_name, world and the options
    options: Mapping[str, Any] = field(default_factory=dict)  # values that JSON knows
    reads_data: bool  # the token files must be there
    # seconds that a node's ranks have after the first has ended; None: no limit, and a failure ends all
    patience: float | None = None

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ForwardJob:
        """Return the job of a line that `to_json` made."""
        values = json.loads(text)
        return cls(**{**values, "overrides": tuple(values["overrides"])})

    def prepared_by_launcher(self, recipe: Recipe, lock: ExitStack) -> ForwardJob:  # noqa: ARG002  nothing is written
        """Check the input files before ranks start; return the job itself."""
        if self.reads_data:
            require_inputs(recipe, SampleCounts(train=0))  # splits are checked where those of the command are known
        return self

    def run(self, world: World) -> End:
        """Call the function in this process as one rank of `world`; return that it has done its work."""
        from pretrain.recipe import load_recipe  # noqa: PLC0415  not needed to describe a job

        os.environ.update(world.environment())
        agree_on_restart_count(world)
        module, _, name = self.function.partition(":")
        call = getattr(importlib.import_module(module), name)
        recipe = load_recipe(self.recipe, self.overrides)
        with early_exit_fails():
            if world.world_size > world.local_world_size and self.function != EXAMINE:  # which says itself what differs
                require_one_recipe(recipe, self.backend, world, lambda: None, reads_data=self.reads_data)
            call(recipe, backend_name=self.backend, world=world, **self.options)
        return End()


AnyJob = Job | ForwardJob


def job_of(text: str) -> AnyJob:
    """Return the job of a line that its `to_json` made."""
    if "function" in json.loads(text):
        return ForwardJob.from_json(text)
    return Job.from_json(text)
