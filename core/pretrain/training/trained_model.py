"""A trained model without an optimizer: loaded on a rank, and evaluated."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.checkpoint import storage
from pretrain.checkpoint.foreign_checkpoints import foreign_checkpoints
from pretrain.collectives import on_rank0
from pretrain.engine import groups
from pretrain.engine.build import engine_parts
from pretrain.engine.megatron.forward_pass import ForwardOnlyEngine
from pretrain.errors import DamageError
from pretrain.plugins.negotiation.kernels import naming_kernels
from pretrain.report.metrics import number
from pretrain.stores.local_copies import shown_place
from pretrain.training.rank_setup import RankSetup, deterministic
from pretrain.training.saving import start_from
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.checkpoint.foreign_checkpoints import ForeignSummary
    from pretrain.engine.protocol import ForwardEngine
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.report.metrics import EvalRecord
    from pretrain.training.training_data import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModel:
    """A model with the weights of a checkpoint."""

    setup: RankSetup
    engine: ForwardEngine
    origin: ForeignSummary


@contextmanager
def trained_model(recipe: Recipe, plugins: Plugins, checkpoint: str, world: World) -> Iterator[TrainedModel]:
    """Build the model on this rank and load its weights; take everything down again afterwards."""

    def notify(text: str) -> None:  # standard output is for results
        if world.rank == 0 and text:
            click.echo(text, err=True)

    setup = RankSetup.of(recipe, plugins, world)
    for line in (*plugins.notices, *recipe.notices):
        notify(line)
    minutes = recipe.parallel.distributed_timeout_minutes
    with (
        deterministic(is_wanted=recipe.train.deterministic_mode),
        groups.joined(plugins.backend, world.rank, world.world_size, minutes),
    ):
        parts = engine_parts(recipe, plugins, setup.tokenizer.vocab_size, setup.device, notify)
        engine = ForwardOnlyEngine(parts)
        with naming_kernels(parts.kernels):
            origin, notices = load_weights(engine, setup.tokenizer.fingerprint, Path(checkpoint))
            for line in (f"checkpoint: {shown_place(origin.path)} ({origin.format})", *notices):
                notify(line)
            yield TrainedModel(setup=setup, engine=engine, origin=origin)
        engine.close()


def load_weights(engine: ForwardEngine, fingerprint: str, path: Path) -> tuple[ForeignSummary, Sequence[str]]:
    """Load the weights of a checkpoint, or of the latest in a folder; return it, and notices. All ranks together."""
    # `fingerprint` is the tokenizer's, which has to be that of the training.
    found = on_rank0(partial(foreign_checkpoints().summary_of, path))
    notices: Sequence[str] = ()
    if found.format == "pretrain":
        try:
            notices = storage.load(engine, found.path, weights_only=True, fingerprint=fingerprint).notices
        except DamageError as error:
            msg = f"{error}\nName another checkpoint by its own folder, such as {found.path.parent}/iter_0000100."
            raise DamageError(msg) from error
    else:  # its remarks are about a training that would follow; `path` is not where a run of that directory saves
        section = engine.recipe.checkpoint.model_copy(update={"load": str(path), "finetune": True, "save": False})
        start_from(engine.recipe.model_copy(update={"checkpoint": section}), engine, path, resume=False)
    return found, notices


def with_evaluation(recipe: Recipe, iters: int | None) -> Recipe:
    """Return the recipe with evaluations of so many global batches (None: its own), also where they are off."""
    section = recipe.evaluation
    changed = {"interval": section.interval or 1, "iters": iters or section.iters}
    return recipe.model_copy(update={"evaluation": section.model_copy(update=changed)})


def evaluate_checkpoint(model: TrainedModel, splits: Sequence[Split], *, as_json: bool) -> None:
    """Evaluate the samples that the training evaluates; rank 0 prints the losses."""
    recipe, origin = model.setup.recipe, model.origin
    evaluation = TrainingData.held_out(model.setup, model.engine, splits).evaluation()
    records = {split: evaluation.run(split, origin.iteration or 0) for split in splits}
    if model.setup.world.rank == 0:
        click.echo(_json(recipe, records, origin) if as_json else _lines(recipe, records, origin))


def _lines(recipe: Recipe, records: Mapping[Split, EvalRecord], origin: ForeignSummary) -> str:
    where = "" if origin.iteration is None else f" at iteration {origin.iteration}"
    names = {"valid": "validation", "test": "test"}
    samples = recipe.evaluation.iters * recipe.train.global_batch_size
    return "\n".join(
        f"{names[split]}{where} | loss {number(record.lm_loss, '.6f')} | ppl {number(record.ppl, '.6g')} | "
        f"{samples:,} samples of {recipe.model.seq_length:,} tokens"
        for split, record in records.items()
    )


def _json(recipe: Recipe, records: Mapping[Split, EvalRecord], origin: ForeignSummary) -> str:
    """Return one line; losses and perplexities that are not finite are null."""
    losses = {split: record.to_json() for split, record in records.items()}
    return json.dumps(
        {
            "checkpoint": str(origin.path),
            "iteration": origin.iteration,
            "iters": recipe.evaluation.iters,
            "global_batch_size": recipe.train.global_batch_size,
            **{split: {key: line[key] for key in ("lm_loss", "ppl")} for split, line in losses.items()},
        }
    )
