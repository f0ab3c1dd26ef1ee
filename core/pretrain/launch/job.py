"""Jobs of ranks, to train or to evaluate: plain values, sent to other processes as JSON; preparation of a run."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.data.needed import SampleCounts, own_corpus
from pretrain.errors import DamageError, InUseError, RunError
from pretrain.exit_codes import End
from pretrain.launch.one_recipe import require_one_recipe
from pretrain.launch.open_files import raise_open_files
from pretrain.launch.process_exit import early_exit_fails
from pretrain.launch.rank0_broadcast import agree_on_restart_count, rank0_decides
from pretrain.launch.run_directory import check_run_dir, holds_run, new_run_dir
from pretrain.launch.run_lock import held, require_shared, this_process
from pretrain.launch.start_checks import Start, folders_of_checkpoints, require_inputs, require_startable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


_HANDOVER_TIMEOUT = 60.0  # seconds: twice what a launcher needs that has lost the store of its run
TRAIN = "pretrain.training.run:train"
EVALUATE = "pretrain.training.run:evaluate"
EVALUATE_TASKS = "pretrain.training.run:evaluate_tasks"
GENERATE = "pretrain.training.run:generate"
EXAMINE = "pretrain.tools.doctor.examination:examine"


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Run directory, and whether its run is resumed."""

    run_dir: Path
    resume: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _SentJob(ABC):
    recipe: str
    overrides: tuple[str, ...] = ()  # "section.key=value"
    backend: str  # value of `--backend`

    @property
    @abstractmethod
    def path(self) -> str:
        """The "module:function" that each rank calls."""

    def to_json(self) -> str:
        """Return the job as one line, for `job_of`."""
        return json.dumps(dataclasses.asdict(self))

    def import_modules(self) -> None:
        """Import what a rank needs, by the function `import_modules` of its function's module, if there is one."""
        from pretrain.recipe import load_recipe  # noqa: PLC0415  as in `_begin`

        module = importlib.import_module(self.path.partition(":")[0])
        if hasattr(module, "import_modules"):
            module.import_modules(load_recipe(self.recipe, self.overrides), self.backend)

    def _begin(self, world: World) -> Recipe:
        """Set torchrun's variables, so that `env://` works however the rank was started; return the recipe."""
        from pretrain.recipe import load_recipe  # noqa: PLC0415  not needed to describe a job

        os.environ.update(world.environment())
        raise_open_files(world)
        agree_on_restart_count(world)
        return load_recipe(self.recipe, self.overrides)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(_SentJob):
    """Training as its ranks receive it."""

    run_dir: str | None  # None: a new one below runs/
    resume: Resume = "no"  # value of `--resume`; "run" or "no" once the job is prepared
    prepared: bool = False  # the launcher has called `prepare_run`; otherwise rank 0 does
    train: str = TRAIN  # "module:function" of recipe, backend_name, run_dir, resume and world; it returns an `End`

    @property
    def path(self) -> str:
        """As of `_SentJob`."""
        return self.train

    def arguments(self) -> list[str]:
        """Return the job as arguments of `pretrain`; without `prepared` and `train`, which have none."""
        overrides = [word for override in self.overrides for word in ("--set", override)]
        run_dir = [] if self.run_dir is None else ["--run-dir", self.run_dir]
        resume = {"no": [], "run": ["--resume"], "auto": ["--resume", "auto"]}[self.resume]
        return ["run", self.recipe, "--backend", self.backend, *overrides, *run_dir, *resume]

    def prepared_by_launcher(self, recipe: Recipe, lock: ExitStack) -> Job:
        """Prepare the run, whose directory `lock` holds; return the job with what was decided."""
        return self.as_prepared(prepare_run(recipe, self._given_dir(), lock, self.resume))

    def as_prepared(self, prepared: PreparedRun) -> Job:
        """Return the job with what `prepare_run` has decided."""
        resume: Resume = "run" if prepared.resume else "no"
        return dataclasses.replace(self, run_dir=str(prepared.run_dir), resume=resume, prepared=True)

    def started_again(self) -> Job:
        """Return a prepared job for a start after a failure: it resumes what is in its run directory."""
        resume: Resume = "run" if holds_run(Path(str(self.run_dir))) else "no"
        return dataclasses.replace(self, resume=resume)

    def run(self, world: World) -> End:
        """Train in this process as one rank of `world`; return how that has ended."""
        recipe = self._begin(world)
        with early_exit_fails(), ExitStack() as lock:
            if self.run_dir and self.prepared:
                prepared = PreparedRun(Path(self.run_dir), self.resume == "run")
            else:
                prepared = prepare_together(recipe, self._given_dir(), world, lock, self.resume)
            self._require_start(recipe, prepared, world)
            end: End = _function(self.train)(
                recipe, backend_name=self.backend, run_dir=prepared.run_dir, resume=prepared.resume, world=world
            )
            return end

    def _given_dir(self) -> Path | None:
        return Path(self.run_dir) if self.run_dir else None

    def _require_start(self, recipe: Recipe, prepared: PreparedRun, world: World) -> None:
        """Make rank 0's checks, and compare ranks that do not have their job from one launcher; all ranks call it."""
        start = Start(recipe=recipe, run_dir=prepared.run_dir, resume="run" if prepared.resume else "no")

        def check() -> None:
            with suppress(DamageError):  # the ranks read the files together, and name the newest intact checkpoint
                require_startable(start, on_rank0=True)

        if world.world_size > world.local_world_size or (world.world_size > 1 and not self.prepared):
            require_one_recipe(recipe, self.backend, world, check)
        elif world.rank == 0:
            check()


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardJob(_SentJob):
    """Evaluation, generation or examination as its ranks receive it; it has no run directory."""

    function: str  # "module:function", called with recipe, backend_name, world and the options
    options: Mapping[str, Any] = field(default_factory=dict)  # values that JSON knows
    reads_data: bool  # the token files must be there
    # Seconds that a node's ranks have after the first has ended; None: no limit, and a failure ends all.
    patience: float | None = None

    @property
    def path(self) -> str:
        """As of `_SentJob`."""
        return self.function

    def prepared_by_launcher(self, recipe: Recipe, lock: ExitStack) -> ForwardJob:  # noqa: ARG002  nothing is written
        """Check the input files before ranks start; return the job itself."""
        if self.reads_data:
            require_inputs(recipe, SampleCounts(train=0))  # splits are checked where those of the command are known
        return self

    def run(self, world: World) -> End:
        """Call the function in this process as one rank of `world`; return that it has done its work."""
        recipe, call = self._begin(world), _function(self.function)
        with early_exit_fails():
            if world.world_size > world.local_world_size and self.function != EXAMINE:  # which says itself what differs
                require_one_recipe(recipe, self.backend, world, lambda: None, reads_data=self.reads_data)
            call(recipe, backend_name=self.backend, world=world, **self.options)
        return End()


AnyJob = Job | ForwardJob


def job_of(text: str) -> AnyJob:
    """Return the job of a line that its `to_json` made."""
    values = json.loads(text)
    kind = ForwardJob if "function" in values else Job
    return kind(**{**values, "overrides": tuple(values["overrides"])})


def _function(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def prepare_run(recipe: Recipe, run_dir: Path | None, lock: ExitStack, resume: Resume) -> PreparedRun:
    """Choose and lock the run directory and build the corpus; called in one process, which outlives the run."""
    from pretrain.checkpoint.owner import require_own  # noqa: PLC0415  --help needs none of it

    if run_dir is None and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        msg = (
            "torchrun --max-restarts repeats this command after a failure, and each start needs the same folder.\n"
            "Pass --run-dir DIR: a restart then continues from the last checkpoint there."
        )
        raise RunError(msg)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":  # torchrun has restarted the ranks after a failure
        resume = "auto"
    start = Start(recipe=recipe, run_dir=run_dir, resume=resume)
    require_startable(start, on_rank0=False)
    resumes = start.resumes
    if run_dir is not None:
        lock.enter_context(held(run_dir))
        resumes = check_run_dir(run_dir, resume)  # another run may have begun, and ended, before the lock was ours
    require_own(recipe, run_dir, resume=resumes)  # once more: the folder may have become another run's
    for folder in folders_of_checkpoints(recipe, run_dir):
        lock.enter_context(held(folder))
    if recipe.data.corpus is not None:
        own_corpus().prepare_corpus(recipe)
    if run_dir is None:
        run_dir = new_run_dir(Path(recipe.source).stem)
        lock.enter_context(held(run_dir, just_made=True))
    return PreparedRun(run_dir, resumes)


def hold_again(recipe: Recipe, run_dir: Path, lock: ExitStack) -> None:
    """Lock the folders of a run in place of the launcher that held them, which may need a while to notice."""
    deadline = time.monotonic() + _HANDOVER_TIMEOUT
    for folder in (run_dir, *folders_of_checkpoints(recipe, run_dir)):
        while True:
            try:
                lock.enter_context(held(folder))
                break
            except InUseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)


def prepare_together(
    recipe: Recipe, run_dir: Path | None, world: World, lock: ExitStack, resume: Resume
) -> PreparedRun:
    """Call `prepare_run` on rank 0, and return its result on every rank; raises as `rank0_decides`."""

    def decide() -> str:
        prepared = prepare_run(recipe, run_dir, lock, resume)
        return json.dumps([str(prepared.run_dir.absolute()), prepared.resume, *this_process()])

    agreed_dir, agreed_resume, *first = json.loads(rank0_decides(decide, world))
    if world.rank != 0 and world.local_rank == 0:
        require_shared(Path(agreed_dir), tuple(first))
    return PreparedRun(Path(agreed_dir), agreed_resume)
