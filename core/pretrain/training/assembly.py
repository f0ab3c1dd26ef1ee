"""Construction of a training, part by part in the order of their dependencies."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click
import torch
import torch.distributed as dist

from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.checkpoint.owner import claim
from pretrain.checkpoint.writing.background import BackgroundSaves
from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.model.requests import compute_dtype
from pretrain.observe.flops import flops_per_sequence
from pretrain.observe.throughput import Speedometer
from pretrain.observe.timers import PhaseTimers
from pretrain.plugins.negotiation.kernel_errors import naming_kernels
from pretrain.recipe.layout import lay_out
from pretrain.training.batch_sizes import BatchSizes, Length, total_iterations
from pretrain.training.continuation import continue_prompt
from pretrain.training.garbage import Garbage
from pretrain.training.loop import Training
from pretrain.training.rank_device import rank_device
from pretrain.training.reporting import run_files
from pretrain.training.reporting.interval import Interval
from pretrain.training.reporting.meter import Meter
from pretrain.training.reporting.run_logger import RunLogger
from pretrain.training.saving import Saving, start_from
from pretrain.training.stopping import Stopping
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import Engine
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.progress import Progress


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
    timeout_minutes = recipe.parallel.distributed_timeout_minutes
    with groups.joined(plugins.backend, world.rank, world.world_size, timeout_minutes):
        notify = partial(_notify, world.rank)
        engine, kernels = build_engine(_of_engine(recipe), plugins, tokenizer.vocab_size, device, notify)
        data, progress, remark = _start(recipe, plugins, tokenizer, layout, engine, run_dir, resume=resume)
        length = Length(iterations=total_iterations(recipe, progress), sizes=BatchSizes.of(recipe), layout=layout)
        with (
            RunLogger(
                recipe,
                run_dir,
                rank=world.rank,
                total_iterations=length.iterations,
                progress=progress,
                resumed=resume,
            ) as logger,
            Stopping(recipe) as stopping,
            Garbage(recipe.train.manual_gc_interval, is_manual=recipe.train.manual_gc) as garbage,
            naming_kernels(kernels),
            _saving(recipe, run_dir, world.rank, progress, logger, resumed=resume) or nullcontext() as saving,
        ):
            devices = _devices(plugins, device)
            if world.rank == 0:
                run_files.write(recipe, plugins, kernels.table, layout, run_dir, devices=devices, started=started)
                for notice in plugins.notices:
                    logger.note(notice)
                run_files.log_header(logger, recipe, kernels.table, layout, tokenizer, run_dir, remark)
            meter = _meter(recipe, plugins, tokenizer, world, device, logger)
            yield Training(
                recipe=recipe,
                length=length,
                progress=progress,
                engine=engine,
                batches=data.training(progress.consumed_samples, meter.timers),
                evaluation=data.evaluation_of_training(),
                saving=saving,
                stopping=stopping,
                garbage=garbage,
                meter=meter,
                continuation=_continuation(recipe, engine, tokenizer),
            )
        engine.close()


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
    data, notices = data.resume(progress)
    return data, progress, "\n".join(filter(None, (remark, *notices)))


def _saving(
    recipe: Recipe, run_dir: Path, rank: int, progress: Progress, logger: RunLogger, *, resumed: bool
) -> Saving | None:
    if recipe.checkpoint.save is False:
        return None
    folder, background = CheckpointFolder.of(recipe, run_dir), None
    if recipe.checkpoint.async_save:
        background = BackgroundSaves(folder, is_main=rank == 0, notify=logger.note)
    saving = Saving(folder, rank, background)
    if rank == 0:
        claim(recipe, run_dir, resume=resumed)
    if resumed and progress.iteration:
        saving.mark_loaded(progress)
    return saving


def _meter(
    recipe: Recipe, plugins: Plugins, tokenizer: Tokenizer, world: World, device: torch.device, logger: RunLogger
) -> Meter:
    return Meter(
        recipe=recipe,
        logger=logger,
        timers=PhaseTimers(synchronize=partial(_synchronize, device) if recipe.logging.log_timers else None),
        interval=Interval(device),
        speedometer=Speedometer(
            seq_length=recipe.model.seq_length,
            flops_per_sequence=flops_per_sequence(recipe.model, recipe.padded_vocab_size(tokenizer.vocab_size)),
            world_size=world.world_size,
            peak_flops=plugins.backend.peak_flops(compute_dtype(recipe)),
        ),
        device=device,
        memory_peak=lambda: plugins.backend.memory().peak,
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
