"""Everything a training is made of, built in the order in which it depends on each other."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.bridge import checkpoint as bridge_checkpoint
from pretrain.bridge import groups as bridge_groups
from pretrain.bridge import optimizer as bridge_optimizer
from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.engine import groups
from pretrain.engine.megatron import MegatronEngine
from pretrain.model.build import build
from pretrain.model.requests import attention_requests, collectives_request, compute_dtype, kernel_requests
from pretrain.observe.flops import flops_per_sequence
from pretrain.observe.throughput import Speedometer
from pretrain.observe.timers import PhaseTimers
from pretrain.plugins.agreement import check_same_on_all_ranks
from pretrain.plugins.negotiation import negotiate
from pretrain.plugins.readiness import require_dtype
from pretrain.training import run_files
from pretrain.training.batch_sizes import BatchSizes, total_iterations
from pretrain.training.continuation import continue_prompt
from pretrain.training.interval import Interval
from pretrain.training.journal import Journal
from pretrain.training.loop import Training
from pretrain.training.reading import Reading
from pretrain.training.saving import Saving, folder_of, start_from
from pretrain.training.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.launch.world import World
    from pretrain.plugins.kernels import Kernels
    from pretrain.plugins.manager import Plugins
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe
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
    require_dtype(plugins, compute_dtype(recipe))
    torch.use_deterministic_algorithms(recipe.train.deterministic_mode)
    device = plugins.backend.device(world.local_rank)
    tokenizer = load_tokenizer(recipe.tokenizer)
    groups.join_world(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes)
    try:
        kernels = _kernels(recipe, plugins, tokenizer)
        engine = _engine(recipe, plugins, kernels, tokenizer, device)
        reading = Reading.of(recipe, tokenizer, layout, parallel_state.get_data_parallel_rank(), engine)
        progress, remark = start_from(recipe, engine, run_dir, resume=resume)
        iterations = total_iterations(recipe)
        with (
            Journal(
                recipe, run_dir, rank=world.rank, total_iterations=iterations, progress=progress, resumed=resume
            ) as journal,
            Stopping(recipe) as stopping,
        ):
            devices = _devices(plugins, device)
            if world.rank == 0:
                run_files.write(recipe, plugins, kernels.table, layout, run_dir, devices=devices, started=started)
                run_files.introduce(journal, recipe, kernels.table, layout, tokenizer, run_dir, remark)
            training = Training(
                recipe=recipe,
                layout=layout,
                total_iterations=iterations,
                sizes=BatchSizes.of(recipe),
                progress=progress,
                engine=engine,
                batches=reading.training(progress.consumed_samples),
                evaluation=reading.evaluation(),
                saving=_saving(recipe, run_dir, world.rank, progress, resumed=resume and bool(remark)),
                stopping=stopping,
                journal=journal,
                timers=PhaseTimers(synchronize=partial(_synchronize, device) if recipe.logging.log_timers else None),
                interval=Interval(device),
                speedometer=_speedometer(recipe, plugins, tokenizer, world.world_size),
                device=device,
                memory_peak=lambda: plugins.backend.memory().peak,
                continuation=_continuation(recipe, engine, tokenizer),
            )
            yield training
    finally:
        groups.leave()


def _kernels(recipe: Recipe, plugins: Plugins, tokenizer: Tokenizer) -> Kernels:
    """Negotiate all kernels, those of the process groups first, and make the groups; all ranks get the same."""
    chosen, backend = recipe.kernels.model_dump(exclude={"fallback", "triangle_block_size"}), plugins.backend
    request = collectives_request(recipe, backend.device_type, backend.process_group)
    collectives = negotiate(plugins, [request], chosen, recipe.kernels.fallback)
    bridge_groups.install(collectives.collectives)
    groups.make_parallel_groups(recipe)
    requests = kernel_requests(recipe, backend.device_type, tokenizer.vocab_size)
    kernels = negotiate(plugins, requests, chosen, recipe.kernels.fallback, earlier=collectives)
    check_same_on_all_ranks(kernels.table)
    return kernels


def _engine(
    recipe: Recipe, plugins: Plugins, kernels: Kernels, tokenizer: Tokenizer, device: torch.device
) -> MegatronEngine:
    backend = plugins.backend
    overflow = backend.overflow() if recipe.precision.dtype == "fp16" else None
    bridge_optimizer.install(kernels.optimizer, overflow)
    bridge_checkpoint.install()
    chunks = build(
        recipe,
        kernels,
        attention_of=partial(_attention_of, recipe, plugins, kernels),
        point_to_point=backend.point_to_point(),
        device=device,
        vocab_size=tokenizer.vocab_size,
    )
    return MegatronEngine(
        recipe,
        chunks,
        device=device,
        vocab_size=tokenizer.vocab_size,
        norm=kernels.optimizer.gradient_norm,
        overflow=overflow,
    )


def _attention_of(recipe: Recipe, plugins: Plugins, kernels: Kernels, layer_number: int) -> AttentionFn:
    """Return a layer's attention kernel; layers differ only where their scores are scaled differently."""
    if not recipe.model.apply_query_key_layer_scaling:
        return kernels.attention
    requests = attention_requests(recipe, plugins.backend.device_type, layer_number=layer_number)
    chosen = {"attention": recipe.kernels.attention, "softmax": recipe.kernels.softmax}
    return negotiate(plugins, requests, chosen, recipe.kernels.fallback).attention


def _saving(recipe: Recipe, run_dir: Path, rank: int, progress: Progress, *, resumed: bool) -> Saving | None:
    if recipe.checkpoint.save is False:
        return None
    saving = Saving(folder_of(recipe, run_dir), rank)
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


def _continuation(recipe: Recipe, engine: MegatronEngine, tokenizer: Tokenizer) -> Callable[[], str] | None:
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


def _synchronize(device: torch.device) -> None:
    torch.get_device_module(device).synchronize()
