"""A tiny GPT on the megatron engine with the cpu backend's kernels, and the same text in every layout."""

from __future__ import annotations

import gc
import logging
from contextlib import closing, contextmanager
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from engine.layouts import ITERATIONS, SAVED_AT
from pretrain.checkpoint import storage
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.engine.protocol import ScoredTokens
from pretrain.model.context import context_rank
from pretrain.plugins.host.manager import load
from pretrain.recipe import lay_out, make_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engine.layouts import Case
    from pretrain.engine.megatron.engine import MegatronEngine
    from pretrain.engine.protocol import Step
    from pretrain.plugins.backend import Backend
    from pretrain.recipe import Recipe

VOCAB_SIZE = 300  # neither a multiple of the padding nor of any tensor-parallel size's share
PROMPT = (7, 8, 9)
SCORED = (
    ScoredTokens(range(33), 32),
    ScoredTokens((290, 291, 292, 17, 294), 3),
    ScoredTokens((5, 6), 1),
    ScoredTokens(range(20, 50), 1),
    ScoredTokens(range(250, 270), 7),
)
"""No multiple of any layout's samples: some ranks are given padding."""

DATA = {
    "model": {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 4, "global_batch_size": 8, "train_iters": 20, "seed": 1},
    "optimizer": {"lr": 1e-3},
    "schedule": {"lr_decay_style": "cosine", "lr_warmup_iters": 2},
}


def tiny(*overrides: str) -> Recipe:
    """Make a recipe of the tiny GPT and overrides."""
    return make_recipe(DATA, overrides)


@contextmanager
def engine_of(recipe: Recipe) -> Iterator[MegatronEngine]:
    """Build the engine as a training does, in a world of one or in the world that this process has joined."""
    plugins = load("cpu")
    with engine_world(plugins.backend):
        engine, _ = build_engine(recipe, plugins, VOCAB_SIZE, torch.device("cpu"), notify=print)
        with closing(engine):
            yield engine


@contextmanager
def engine_world(backend: Backend) -> Iterator[None]:
    """Give a block a world for one engine: one of its own, or the one that this process has joined."""
    alone = not dist.is_initialized()
    if alone:
        groups.join_world(backend, 0, 1, timeout_minutes=1)
    before = _process_groups()
    try:
        yield
    finally:
        if alone:
            groups.leave()
        else:
            parallel_state.destroy_model_parallel()
            for group in _process_groups() - before:  # torch keeps them, and each has threads that wake
                dist.destroy_process_group(group)
            gc.collect()  # an engine is a cycle, and holds them too


def _process_groups() -> set[dist.ProcessGroup]:
    return set(dist.distributed_c10d._world.pg_map)


def micro_batches(recipe: Recipe, iteration: int) -> Iterator[dict[str, torch.Tensor | None]]:
    """Give this rank's micro-batches of an iteration: tokens that count up, a quarter of each sequence without loss.

    For an iteration below 0, and where the loss is by token, the sequences differ in how many count: 32 down to 4;
    with `data.eod_mask_loss` down to none. Documents of a sequence have their own masks and positions if the recipe
    says so.
    """
    generator = torch.Generator().manual_seed(1000 + iteration)
    samples, length = recipe.train.global_batch_size, recipe.model.seq_length
    starts = torch.randint(VOCAB_SIZE, (samples, 1), generator=generator)
    text = (starts + torch.arange(length + 1)) % VOCAB_SIZE
    left_out = _left_out(recipe, iteration)
    counted = (torch.rand(samples, length, generator=generator).argsort(dim=1) >= left_out).float()
    micro, replicas = recipe.train.micro_batch_size, parallel_state.get_data_parallel_world_size()
    first = micro * parallel_state.get_data_parallel_rank()
    for start in range(first, samples, micro * replicas):
        rows = slice(start, start + micro)
        batch = {
            "tokens": text[rows, :-1],
            "labels": text[rows, 1:].contiguous(),
            "loss_mask": counted[rows],
            "position_ids": _positions(recipe).expand(micro, -1),
        }
        ends = _document_ends(range(start, start + micro), length) if recipe.data.reset_attention_mask else None
        yield context_rank().part(batch, ends)


def take_step(engine: MegatronEngine, iteration: int) -> Step:
    """Train one iteration and advance the schedule, as the loop does."""
    batches = micro_batches(engine.recipe, iteration) if engine.reads_data else None
    step = engine.train_step(batches, num_microbatches(engine.recipe))
    if not step.skipped:
        engine.advance_schedule(engine.recipe.train.global_batch_size)
    return step


def train(engine: MegatronEngine, first: int = 0, last: int = ITERATIONS) -> list[tuple[float, float]]:
    """Train iterations `first` up to `last`; return the loss and the gradient norm of each, equal on all ranks."""
    curve = []
    for iteration in range(first, last):
        step = take_step(engine, iteration)
        curve.append((_mean_loss(step.loss), step.grad_norm.item()))
    return curve


def curve(*overrides: str, iterations: int = 4) -> list[tuple[float, float]]:
    """Train an engine of the tiny GPT and overrides from its beginning; return what `train` does."""
    with engine_of(tiny(*overrides)) as engine:
        return train(engine, 0, iterations)


def held_out_loss(engine: MegatronEngine) -> float:
    """Evaluate on text that is never trained on."""
    batches = micro_batches(engine.recipe, -1) if engine.reads_data else None
    return engine.evaluate(batches, num_microbatches(engine.recipe)).item()


def num_microbatches(recipe: Recipe) -> int:
    """Return the micro-batches of this rank in one step."""
    return lay_out(recipe, dist.get_world_size()).num_microbatches(recipe.train.global_batch_size)


def run(case: Case, folder: Path) -> dict[str, object]:
    """Train a case in this world; `folder` is where checkpoints are."""
    with engine_of(tiny(*case.model, *case.layout)) as engine:
        if case.loads:
            assert storage.load(engine, folder / case.loads, weights_only=False).progress["iteration"] == SAVED_AT
            curve = []
        else:
            curve = train(engine, 0, SAVED_AT)
        parameters = engine.parameters_norm().item()
        if case.saves:
            save(engine, folder / case.saves, SAVED_AT)
        curve += train(engine, SAVED_AT, case.last)
        return {
            "curve": curve,
            "held out": held_out_loss(engine),
            "parameters": parameters,
            "scores": engine.log_likelihoods(SCORED).tolist(),
            "logits": engine.next_token_logits(PROMPT).tolist() + engine.next_token_logits(range(7, 27)).tolist(),
        }


def save(engine: MegatronEngine, directory: Path, iteration: int) -> None:
    """Save into a folder that is made for it; megatron-core validates what the ranks give it."""
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    progress = {"iteration": iteration, "consumed_samples": 8 * iteration, "skipped_iterations": 0}
    if dist.get_rank():
        progress["blend"] = None  # ranks that read no data lack parts of it
    with _no_warnings_of("megatron.core.dist_checkpointing"):
        storage.save(engine, directory, progress)


@contextmanager
def _no_warnings_of(library: str) -> Iterator[None]:
    """Fail if the library has logged a warning on this rank."""
    logger, noted = logging.getLogger(library), BufferingHandler(1000)
    noted.setLevel(logging.WARNING)
    logger.addHandler(noted)
    try:
        yield
    finally:
        logger.removeHandler(noted)
    warnings = [record.getMessage() for record in noted.buffer]
    assert not warnings, warnings  # a rank's process has no pytest to show them


def _left_out(recipe: Recipe, iteration: int) -> torch.Tensor:
    """Return how many tokens of each sequence have no loss, [b, 1]."""
    samples, length = recipe.train.global_batch_size, recipe.model.seq_length
    number = torch.arange(samples)[:, None]
    if recipe.data.eod_mask_loss:
        return number * length // (samples - 1)
    if iteration < 0 or recipe.train.calculate_per_token_loss:
        return number * length // samples
    return torch.full_like(number, length // 4)


def _positions(recipe: Recipe) -> torch.Tensor:
    position = torch.arange(recipe.model.seq_length)
    second = recipe.model.seq_length // 3
    return torch.where(position < second, position, position - second) if recipe.data.reset_position_ids else position


_CUTS = ((10,), (8, 16), (1, 31), (7, 9, 24))
"""Where documents end within a sequence of 32: in pieces of context parallelism, at their edges, and beside those."""


def _document_ends(samples: range, length: int) -> torch.Tensor:
    """Return the ends of documents of several sequences, cut in different places."""
    cuts = [[*(cut for cut in _CUTS[row % len(_CUTS)] if cut < length), length] for row in samples]
    return torch.tensor([0, *(row * length + end for row, ends in enumerate(cuts) for end in ends)], dtype=torch.int32)


def _mean_loss(loss: torch.Tensor | None) -> float:
    """Average over the ranks that have a loss: tensor-parallel ones have the same."""
    total = torch.zeros(2, dtype=torch.float64)
    if loss is not None:
        total += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
