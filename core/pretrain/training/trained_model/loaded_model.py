"""A trained model without an optimizer, assembled on a rank."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.engine import groups
from pretrain.engine.build import build_forward_engine
from pretrain.plugins.negotiation.kernel_errors import naming_kernels
from pretrain.recipe.layout import lay_out
from pretrain.training.rank_device import rank_device
from pretrain.training.trained_model.loaded_weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import ForwardEngine
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.trained_model.loaded_weights import Origin


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModel:
    """A model with the weights of a checkpoint.

    Attributes:
        recipe: of the training.
        engine: the model, distributed over the ranks.
        tokenizer: the recipe's.
        layout: sizes of the parallel groups.
        origin: of the weights.
        rank: of this process; rank 0 prints.
        pin_memory: see `TrainingData`.
    """

    recipe: Recipe
    engine: ForwardEngine
    tokenizer: Tokenizer
    layout: Layout
    origin: Origin
    rank: int
    pin_memory: bool


@contextmanager
def trained_model(
    recipe: Recipe, plugins: Plugins, checkpoint: str, *, rank: int, local_rank: int, world_size: int
) -> Iterator[TrainedModel]:
    """Build the model on this rank and load its weights; take everything down again afterwards.

    Rank 0 says on standard error what was loaded.

    Args:
        recipe: of the training.
        plugins: the loaded backend, whose device is available and for which the bridge is installed.
        checkpoint: a folder, as `load_weights` takes it.
        rank: of all ranks.
        local_rank: within its node; which of the node's devices it takes.
        world_size: number of ranks.

    Raises:
        PretrainError: the device, the layout, a kernel, or the checkpoint does not fit the recipe.
    """
    layout = lay_out(recipe, world_size)
    device = rank_device(recipe, plugins, local_rank)
    tokenizer = load_tokenizer(recipe.tokenizer)
    notify = partial(_notify, rank)
    for line in (*plugins.notices, *recipe.notices):
        notify(line)
    with groups.joined(plugins.backend, rank, world_size, recipe.parallel.distributed_timeout_minutes):
        engine, kernels = build_forward_engine(recipe, plugins, tokenizer.vocab_size, device, notify)
        with naming_kernels(kernels):
            origin = load_weights(engine, Path(checkpoint))
            for line in (f"checkpoint: {origin.path} ({origin.format})", *origin.notices):
                notify(line)
            yield TrainedModel(
                recipe=recipe,
                engine=engine,
                tokenizer=tokenizer,
                layout=layout,
                origin=origin,
                rank=rank,
                pin_memory=plugins.backend.pinned_memory(),
            )
        engine.close()


def _notify(rank: int, text: str) -> None:
    """Show a line; standard output is for results."""
    if rank == 0 and text:
        click.echo(text, err=True)
