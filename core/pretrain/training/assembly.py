"""Construction of a training, part by part in the order of their dependencies."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import torch
import torch.distributed as dist

from pretrain.checkpoint import generators
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.checkpoint.owner import claim
from pretrain.checkpoint.writing.background import BackgroundSaves
from pretrain.collective_errors import of_first_rank
from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.model.marks import mark
from pretrain.model.requests import compute_dtype
from pretrain.plugins.negotiation.kernel_errors import naming_kernels
from pretrain.recipe.layout import lay_out
from pretrain.report.environment_file import Begin
from pretrain.report.flops import Speedometer, flops_per_sequence
from pretrain.report.hang.position import LOAD
from pretrain.report.timers import PhaseTimers
from pretrain.training.batch_sizes import BatchSizes, Length, total_iterations
from pretrain.training.continuation import continue_prompt
from pretrain.training.garbage import Garbage
from pretrain.training.loop import Training
from pretrain.training.rank_device import rank_device
from pretrain.training.reporting import run_files
from pretrain.training.reporting.interval import Interval
from pretrain.training.reporting.meter import Meter
from pretrain.training.reporting.run_logger import RunLogger
from pretrain.training.reporting.stragglers import Stragglers
from pretrain.training.safeguards import of_recipe
from pretrain.training.safeguards.iterations_left_out import LeftOut
from pretrain.training.safeguards.rank_watch import rank_watch
from pretrain.training.safeguards.spike_response import SpikeResponse
from pretrain.training.safeguards.step_batches import StepBatches
from pretrain.training.saving import Saving, start_from
from pretrain.training.stopping import Stopping
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import Batch, Engine
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.report.hang.position import Position
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.local_clock import LocalClock
    from pretrain.training.safeguards.broken_since import BrokenSince
    from pretrain.training.safeguards.spike_watch import SpikeWatch


@contextmanager
def assemble(
    recipe: Recipe, plugins: Plugins, run_dir: Path, world: World, *, resume: bool, started: float
) -> Iterator[Training]:
    """Build a training on this rank, and take everything down again afterwards.

    Args:
        recipe: what is trained.
        plugins: the loaded backend, whose device is available and for which the bridge is installed.
        run_dir: where the run's files go.
        world: this rank's place.
        resume: whether the run in `run_dir` is continued.
        started: seconds since the epoch at which the run was started.
    """
    layout = lay_out(recipe, world.world_size)
    device = rank_device(recipe, plugins, world.local_rank)
    tokenizer = load_tokenizer(recipe.tokenizer)
    with (
        groups.joined(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes),
        rank_watch(recipe, plugins, world, run_dir) as position,
    ):
        engine, kernels, seeded = _build(recipe, plugins, tokenizer, device, world.rank, position)
        with position.during(LOAD):
            data, progress, remark = _start(recipe, plugins, tokenizer, layout, engine, run_dir, resume=resume)
        length = Length(iterations=total_iterations(recipe, progress), sizes=BatchSizes.of(recipe), layout=layout)
        spike_watch = of_recipe.spike_watch(recipe, device, progress, pin_memory=plugins.backend.pinned_memory())
        with (
            _logger(recipe, run_dir, world, length, progress, resumed=resume) as logger,
            Stopping(recipe, *filter(None, (spike_watch,))) as stopping,
            Garbage(recipe.train.manual_gc_interval, is_manual=recipe.train.manual_gc) as garbage,
            naming_kernels(kernels),
            _saving(recipe, run_dir, world.rank, progress, logger, seeded, resumed=resume) or nullcontext() as saving,
            position.until_end(),  # left first: a checkpoint that is being written may take long, while others hang
            _telling(world),
        ):
            begin = Begin(started, progress.iteration)
            _describe(logger, recipe, plugins, kernels, layout, tokenizer, run_dir, remark, device, begin)
            clock = of_recipe.local_clock(recipe, engine, layout, device)
            meter = _meter(recipe, plugins, tokenizer, world, device, logger, clock, engine, position)
            broken = of_recipe.broken_since(recipe, device)
            batches = StepBatches(partial(_opened, data, meter.timers), progress)
            yield Training(
                recipe=recipe,
                length=length,
                progress=progress,
                engine=engine,
                batches=batches,
                left_out=LeftOut.of(recipe, progress),
                evaluation=data.evaluation_of_training(),
                saving=saving,
                stopping=stopping,
                garbage=garbage,
                meter=meter,
                continuation=_continuation(recipe, engine, tokenizer),
                spikes=_spikes(recipe, spike_watch, stopping, progress, engine, saving, batches, meter, broken),
                replicas=of_recipe.replica_check(recipe, engine, layout, logger, progress, saving),
                broken=broken,
                clock=clock,
                owes_evaluation=resume and _owes_evaluation(recipe, logger, progress),
            )
        engine.close()


def _describe(
    logger: RunLogger,
    recipe: Recipe,
    plugins: Plugins,
    kernels: Kernels,
    layout: Layout,
    tokenizer: Tokenizer,
    run_dir: Path,
    remark: str,
    device: torch.device,
    begin: Begin,
) -> None:
    """Write the files that describe the run, and log its head, on rank 0; all ranks call it together."""
    devices = _devices(plugins, device)
    if dist.get_rank() == 0:
        run_files.write(recipe, plugins, kernels.table, layout, run_dir, devices=devices, begin=begin)
        run_files.log_header(logger, recipe, plugins, kernels.table, layout, tokenizer, run_dir, remark)


@contextmanager
def _telling(world: World) -> Iterator[None]:
    """Tell the launcher the error of a block at once."""
    try:
        yield
    except Exception as error:
        if world.tell_error is not None:
            world.tell_error(error)
        raise


def _build(
    recipe: Recipe, plugins: Plugins, tokenizer: Tokenizer, device: torch.device, rank: int, position: Position
) -> tuple[Engine, Kernels, dict[str, Any]]:
    """Return the engine, its kernels, and the states of the random generators that it leaves."""
    notify = partial(_notify, rank)
    engine, kernels = build_engine(_of_engine(recipe), plugins, tokenizer.vocab_size, device, notify)
    mark(engine.models, position)
    return engine, kernels, generators.states()


def _logger(
    recipe: Recipe, run_dir: Path, world: World, length: Length, progress: Progress, *, resumed: bool
) -> RunLogger:
    return RunLogger(
        recipe, run_dir, rank=world.rank, total_iterations=length.iterations, progress=progress, resumed=resumed
    )


def _owes_evaluation(recipe: Recipe, logger: RunLogger, progress: Progress) -> bool:
    """Say whether an evaluation was due after the loaded checkpoint and is not logged; all ranks call it together."""
    every, done = recipe.evaluation.interval, progress.iteration
    return bool(
        every and done and done % every == 0 and not of_first_rank(partial(logger.has_evaluation, "valid", done))
    )


def _spikes(
    recipe: Recipe,
    watch: SpikeWatch | None,
    stopping: Stopping,
    progress: Progress,
    engine: Engine,
    saving: Saving | None,
    batches: StepBatches,
    meter: Meter,
    broken: BrokenSince | None,
) -> SpikeResponse | None:
    if watch is None:
        return None
    return SpikeResponse(
        recipe=recipe,
        watch=watch,
        exchange=stopping.exchange,
        progress=progress,
        engine=engine,
        saving=saving,
        batches=batches,
        meter=meter,
        broken=broken,
    )


def _of_engine(recipe: Recipe) -> Recipe:
    """Return the recipe with the schedule of a loaded checkpoint, whatever it is, where no step will follow it."""
    schedule = recipe.schedule
    if recipe.train.train_iters != 0 or schedule.override_opt_param_scheduler:
        return recipe
    return recipe.model_copy(
        update={"schedule": schedule.model_copy(update={"use_checkpoint_opt_param_scheduler": True})}
    )


def _start(
    recipe: Recipe,
    plugins: Plugins,
    tokenizer: Tokenizer,
    layout: Layout,
    engine: Engine,
    run_dir: Path,
    *,
    resume: bool,
) -> tuple[TrainingData, Progress, str]:
    """Return the data, the progress that the training starts from, and a remark for the user."""
    progress, remark = start_from(recipe, engine, run_dir, resume=resume)
    data = TrainingData.of(recipe, tokenizer, layout, engine, progress, pin_memory=plugins.backend.pinned_memory())
    _, notices = data.resume(progress)
    return data, progress, "\n".join(filter(None, (remark, *notices)))


def _saving(
    recipe: Recipe,
    run_dir: Path,
    rank: int,
    progress: Progress,
    logger: RunLogger,
    seeded: dict[str, Any],
    *,
    resumed: bool,
) -> Saving | None:
    if recipe.checkpoint.save is False:
        return None
    folder, background = CheckpointFolder.of(recipe, run_dir), None
    if recipe.checkpoint.async_save:
        minutes = recipe.parallel.distributed_timeout_minutes
        background = BackgroundSaves(folder, is_main=rank == 0, notify=logger.note, timeout_minutes=minutes)
    saving = Saving(folder, rank, background, seeded)
    if rank == 0:
        claim(recipe, run_dir, resume=resumed)
    if resumed and progress.iteration:
        saving.mark_loaded(progress, is_own=progress.iteration in of_first_rank(folder.iterations))
    return saving


def _opened(data: TrainingData, timers: PhaseTimers, progress: Progress) -> Generator[Batch] | None:
    resumed, _ = data.resume(progress)
    return resumed.training(progress.consumed_samples, timers)


def _meter(
    recipe: Recipe,
    plugins: Plugins,
    tokenizer: Tokenizer,
    world: World,
    device: torch.device,
    logger: RunLogger,
    clock: LocalClock | None,
    engine: Engine,
    position: Position,
) -> Meter:
    return Meter(
        recipe=recipe,
        logger=logger,
        timers=PhaseTimers(
            synchronize=partial(_synchronize, device) if recipe.logging.log_timers else None, position=position
        ),
        interval=Interval(device),
        speedometer=Speedometer(
            seq_length=recipe.model.seq_length,
            flops_per_sequence=flops_per_sequence(recipe.model, recipe.padded_vocab_size(tokenizer.vocab_size)),
            world_size=world.world_size,
            peak_flops=plugins.backend.peak_flops(compute_dtype(recipe)),
        ),
        device=device,
        memory_peak=lambda: plugins.backend.memory().peak,
        stragglers=None if clock is None else Stragglers(clock, device, reads_data=engine.reads_data),
    )


def _continuation(recipe: Recipe, engine: Engine, tokenizer: Tokenizer) -> Callable[[], str] | None:
    evaluation = recipe.evaluation
    if evaluation.prompt is None:
        return None
    return partial(
        continue_prompt, engine, tokenizer, evaluation.prompt, evaluation.prompt_tokens, seed=recipe.train.seed
    )


def _devices(plugins: Plugins, device: torch.device) -> list[str]:
    """Return the name of every rank's device; all ranks call it together."""
    names: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(names, plugins.backend.describe().get("device", str(device)))
    return names


def _notify(rank: int, text: str) -> None:
    """Show a line before the logger is open."""
    if rank == 0:
        click.echo(text)


def _synchronize(device: torch.device) -> None:
    getattr(torch.get_device_module(device), "synchronize", torch.accelerator.synchronize)()
