"""Everything a training is made of, built in the order in which it depends on each other."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click
import torch
import torch.distributed as dist

from pretrain.checkpoint.owner import claim
from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.model.requests import compute_dtype
from pretrain.observe.flops import flops_per_sequence
from pretrain.observe.throughput import Speedometer
from pretrain.observe.timers import PhaseTimers
from pretrain.plugins.blame import naming_kernels
from pretrain.plugins.members import take_device
from pretrain.plugins.readiness import require_compilation, require_dtype, require_overlap
from pretrain.training import run_files
from pretrain.training.batch_sizes import BatchSizes, total_iterations
from pretrain.training.continuation import continue_prompt
from pretrain.training.garbage import Garbage
from pretrain.training.interval import Interval
from pretrain.training.run_logger import Journal
from pretrain.training.loop import Training
from pretrain.training.training_data import Reading
from pretrain.training.saving import Saving, folder_of, start_from
from pretrain.training.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import Engine
    from pretrain.launch.world import World
    from pretrain.plugins.manager import Plugins
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
    layout = recipe.layout(world.world_size)
    device = _device(recipe, plugins, world)
    tokenizer = load_tokenizer(recipe.tokenizer)
    groups.join_world(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes)
    try:
        engine, kernels = build_engine(recipe, plugins, tokenizer.vocab_size, device, partial(_tell, world.rank))
        reading, progress, remark = _start(recipe, plugins, tokenizer, layout, engine, run_dir, resume=resume)
        with (
            _journal(recipe, run_dir, world.rank, progress, resumed=resume) as journal,
            Stopping(recipe) as stopping,
            Garbage(recipe.train.manual_gc_interval, is_manual=recipe.train.manual_gc) as garbage,
            naming_kernels(kernels),
        ):
            devices = _devices(plugins, device)
            timers = PhaseTimers(synchronize=partial(_synchronize, device) if recipe.logging.log_timers else None)
            if world.rank == 0:
                run_files.write(recipe, plugins, kernels.table, layout, run_dir, devices=devices, started=started)
                run_files.introduce(journal, recipe, kernels.table, layout, tokenizer, run_dir, remark)
            training = Training(
                recipe=recipe,
                layout=layout,
                total_iterations=total_iterations(recipe, progress),
                sizes=BatchSizes.of(recipe),
                progress=progress,
                engine=engine,
                batches=reading.training(progress.consumed_samples, timers),
                evaluation=reading.evaluation(),
                saving=_saving(recipe, run_dir, world.rank, progress, resumed=resume),
                stopping=stopping,
                garbage=garbage,
                journal=journal,
                timers=timers,
                interval=Interval(device),
                speedometer=_speedometer(recipe, plugins, tokenizer, world.world_size),
                device=device,
                memory_peak=lambda: plugins.backend.memory().peak,
                continuation=_continuation(recipe, engine, tokenizer),
            )
            yield training
        engine.close()
    except BaseException:
        if world.world_size == 1:  # with more ranks, tearing down would wait for those that have died
            groups.leave()
        raise
    groups.leave()


def _device(recipe: Recipe, plugins: Plugins, world: World) -> torch.device:
    """Return this rank's device, which must know the recipe's dtype and for which layers compile if they are to."""
    device = take_device(plugins, world.local_rank)
    require_dtype(plugins, compute_dtype(recipe))
    require_compilation(plugins, recipe)
    require_overlap(plugins, recipe)
    return device


def _journal(recipe: Recipe, run_dir: Path, rank: int, progress: Progress, *, resumed: bool) -> Journal:
    total = total_iterations(recipe, progress)
    return Journal(recipe, run_dir, rank=rank, total_iterations=total, progress=progress, resumed=resumed)


def _start(
    recipe: Recipe,
    plugins: Plugins,
    tokenizer: Tokenizer,
    layout: Layout,
    engine: Engine,
    run_dir: Path,
    *,
    resume: bool,
) -> tuple[Reading, Progress, str]:
    """Return what is read, how far the training is, and what to say of it."""
    progress, remark = start_from(recipe, engine, run_dir, resume=resume)
    reading = Reading.of(recipe, tokenizer, layout, engine, progress, pin_memory=plugins.backend.pinned_memory())
    reading, notices = reading.go_on(progress)
    return reading, progress, "\n".join(filter(None, (remark, *notices)))


def _saving(recipe: Recipe, run_dir: Path, rank: int, progress: Progress, *, resumed: bool) -> Saving | None:
    if recipe.checkpoint.save is False:
        return None
    saving = Saving(folder_of(recipe, run_dir), rank)
    if rank == 0:
        claim(recipe, run_dir, resume=resumed)
    if resumed and progress.iteration:
        saving.mark_loaded(progress)
    return saving


def _speedometer(recipe: Recipe, plugins: Plugins, tokenizer: Tokenizer, world_size: int) -> Speedometer:
    return Speedometer(
        seq_length=recipe.model.seq_length,
        flops_per_sequence=flops_per_sequence(recipe.model, recipe.padded_vocab_size(tokenizer.vocab_size)),
        world_size=world_size,
        peak_flops=plugins.backend.peak_flops(compute_dtype(recipe)),
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


def _tell(rank: int, text: str) -> None:
    """Show a line before the journal is open."""
    if rank == 0:
        click.echo(text)


def _synchronize(device: torch.device) -> None:
    getattr(torch.get_device_module(device), "synchronize", torch.accelerator.synchronize)()
