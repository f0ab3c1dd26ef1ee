"""Construction of a training, part by part in the order of their dependencies."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pretrain.checkpoint import generators
from pretrain.checkpoint.copies.node_copies import NodeCopies
from pretrain.checkpoint.copies.peers import Peers
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.model.marks import mark
from pretrain.plugins.negotiation.kernels import naming_kernels
from pretrain.report.environment_file import Begin
from pretrain.report.hang.position import LOAD
from pretrain.training.event import GcControl
from pretrain.training.events import Checkpoints, Continuation, CopiesOnNodes, Evaluations, LogLines, evaluation_pending
from pretrain.training.loop import Training
from pretrain.training.profiling import ProfileRequests, Profiling, require_profile
from pretrain.training.progress import Length
from pretrain.training.rank_setup import RankSetup
from pretrain.training.reporting.meter import Meter
from pretrain.training.reporting.run_output import RunLogger, describe
from pretrain.training.reporting.stragglers import LocalClock
from pretrain.training.safeguards.health import BrokenSince, Health
from pretrain.training.safeguards.rank_watch import rank_watch
from pretrain.training.safeguards.replicas import ReplicaCheck
from pretrain.training.safeguards.spike_response import SpikeResponse
from pretrain.training.safeguards.spike_watch import SpikeWatch
from pretrain.training.saving import open_saving, start_from
from pretrain.training.stopping import Stopping
from pretrain.training.task_evaluation import TaskEvaluation, TaskEvaluations
from pretrain.training.training_data import RewindableBatches, TrainingData

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from pretrain.engine.protocol import Batch, Engine
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.recipe import Recipe
    from pretrain.report.hang.position import Position
    from pretrain.report.timers import PhaseTimers
    from pretrain.training.event import Event
    from pretrain.training.progress import Progress
    from pretrain.training.saving import Saving


@contextmanager
def assemble(
    recipe: Recipe, plugins: Plugins, run_dir: Path, world: World, *, resume: bool, started: float
) -> Iterator[Training]:
    """Build a training on this rank, and take everything down again afterwards."""
    # The backend's device is available, and the bridge is installed for it. With `resume` the run in `run_dir`
    # continues; it was `started` at these seconds since the epoch.
    setup = RankSetup.of(recipe, plugins, world)
    require_profile(setup, run_dir, resumed=resume)
    with (
        groups.joined(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes),
        rank_watch(recipe, plugins, world, run_dir) as position,
    ):
        engine, kernels, seeded = _build(setup, position)
        with position.during(LOAD):
            copies = _copies(setup, run_dir)
            data, progress, remark = _start(setup, engine, run_dir, copies, resume=resume)
        length = Length.of(recipe, progress, setup.layout)
        watch = SpikeWatch.of(setup, progress)
        # Mistakes in them are told before anything is written: the corrected command finds no run in its directory.
        tasks = TaskEvaluation(setup, engine, quiet=True, position=position) if recipe.evaluation.tasks else None
        with (
            ProfileRequests() as requests,
            Stopping(  # left when the loggers have finished
                recipe, requests, *filter(None, (watch,)), answers=world.local_rank == 0
            ) as stopping,
            RunLogger(setup, run_dir, length.iterations, progress, resumed=resume) as logger,
            GcControl(recipe.train.manual_gc_interval, is_manual=recipe.train.manual_gc) as garbage,
            naming_kernels(kernels),
            open_saving(setup, run_dir, progress, logger.note, seeded, resumed=resume, copies=copies)
            or nullcontext() as saving,
            position.until_end(),  # left first: a checkpoint that is being written may take long, while others hang
            report_errors_to_launcher(world),
        ):
            describe(logger, setup, kernels.table, run_dir, remark, Begin(started, progress.iteration))
            clock = LocalClock.of(recipe, engine, setup.layout, setup.device)
            meter = Meter.of(setup, logger, position, garbage, clock, reads_data=engine.reads_data)
            opened = partial(_opened, data, meter.timers)
            training = Training(
                recipe=recipe,
                length=length,
                progress=progress,
                engine=engine,
                batches=RewindableBatches(opened, progress, recipe.train.iterations_to_skip),
                stopping=stopping,
                meter=meter,
            )
            profiling = Profiling(training, setup, kernels, requests, run_dir)
            profiling.note_missing()
            is_pending = resume and evaluation_pending(recipe, logger, progress)
            events = _events(training, setup, data, saving, watch, clock, tasks, is_pending=is_pending)
            yield replace(training, events=(profiling, *events))
        engine.close()


def _events(
    training: Training,
    setup: RankSetup,
    data: TrainingData,
    saving: Saving | None,
    watch: SpikeWatch | None,
    clock: LocalClock | None,
    tasks: TaskEvaluation | None,
    *,
    is_pending: bool,
) -> tuple[Event, ...]:
    """Return the events of a training, in their order."""
    # Spikes come before all that logs or keeps an iteration, since they may take it back; a checkpoint before the
    # evaluation, so that a run which is killed in that loses nothing.
    recipe, evaluation = training.recipe, training.recipe.evaluation
    broken = None if recipe.precision.dtype == "fp16" else BrokenSince(setup.device)  # fp16 recovers
    health = Health(training, saving, broken)
    spikes = None if watch is None else SpikeResponse(training, watch, saving, broken)
    order = (
        clock,
        saving,
        broken,
        spikes,
        ReplicaCheck.of(training, saving),
        LogLines(training, health),
        None if saving is None else Checkpoints(training, saving, health, spikes),
        None if saving is None or saving.copies is None else CopiesOnNodes(training, saving),
        Evaluations(training, data.evaluation(), is_pending) if evaluation.interval else None,
        None if tasks is None else TaskEvaluations(training, tasks),
        Continuation(training, setup.tokenizer) if evaluation.prompt else None,
        training.meter.garbage,
    )
    return tuple(event for event in order if event is not None)


@contextmanager
def report_errors_to_launcher(world: World) -> Iterator[None]:
    """Tell the launcher the error of a block at once."""
    try:
        yield
    except Exception as error:
        if world.tell_error is not None:
            world.tell_error(error)
        raise


def _build(setup: RankSetup, position: Position) -> tuple[Engine, Kernels, dict[str, Any]]:
    """Return the engine, its kernels, and the states of the random generators that it leaves."""

    def notify(text: str) -> None:  # the logger is not open yet
        if setup.world.rank == 0:
            click.echo(text)

    recipe, schedule = setup.recipe, setup.recipe.schedule
    if recipe.train.train_iters == 0 and not schedule.override_opt_param_scheduler:
        # No step will follow a loaded checkpoint: its schedule is taken, whatever it is.
        schedule = schedule.model_copy(update={"use_checkpoint_opt_param_scheduler": True})
        recipe = recipe.model_copy(update={"schedule": schedule})
    engine, kernels = build_engine(recipe, setup.plugins, setup.tokenizer.vocab_size, setup.device, notify)
    mark(engine.models, position)
    return engine, kernels, generators.states()


def _copies(setup: RankSetup, run_dir: Path) -> NodeCopies | None:
    if setup.recipe.checkpoint.local_interval == 0:
        return None
    world = setup.world
    peers = Peers(world.rank, world.world_size, world.local_world_size)
    return NodeCopies(setup.recipe, run_dir, peers, setup.tokenizer.vocab_size)


def _start(
    setup: RankSetup, engine: Engine, run_dir: Path, copies: NodeCopies | None, *, resume: bool
) -> tuple[TrainingData, Progress, str]:
    """Return the data, the progress that the training starts from, and a remark for the user."""
    progress, remark = start_from(setup.recipe, engine, run_dir, resume=resume, copies=copies)
    data = TrainingData.of(setup, engine, progress)
    _, notices = data.resume(progress)
    left_out = [] if copies is None else copies.notices
    return data, progress, "\n".join(filter(None, (remark, *left_out, *notices)))


def _opened(data: TrainingData, timers: PhaseTimers, progress: Progress) -> Generator[Batch] | None:
    resumed, _ = data.resume(progress)
    return resumed.training(progress.consumed_samples, timers)
