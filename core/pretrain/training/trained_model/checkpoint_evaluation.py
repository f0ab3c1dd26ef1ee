"""Loss and perplexity of a checkpoint on held-out text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from pretrain.report.records import number
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.report.records import EvalRecord
    from pretrain.training.evaluation import Split
    from pretrain.training.trained_model.loaded_model import TrainedModel
    from pretrain.training.trained_model.loaded_weights import Origin


def that_evaluates(recipe: Recipe, iters: int | None) -> Recipe:
    """Return the recipe with evaluations of so many global batches (None: its own), also where they are off."""
    section = recipe.evaluation
    changed = {"interval": section.interval or 1, "iters": iters or section.iters}
    return recipe.model_copy(update={"evaluation": section.model_copy(update=changed)})


def evaluate_checkpoint(model: TrainedModel, splits: Sequence[Split], *, as_json: bool) -> None:
    """Evaluate the samples that the training evaluates; rank 0 prints the losses."""
    recipe, origin = model.recipe, model.origin
    data = TrainingData.held_out(
        recipe, model.tokenizer, model.layout, model.engine, splits, pin_memory=model.pin_memory
    )
    evaluation = data.evaluation()
    records = {split: evaluation.run(split, origin.iteration or 0) for split in splits}
    if model.rank == 0:
        click.echo(_json(recipe, records, origin) if as_json else _lines(recipe, records, origin))


def _lines(recipe: Recipe, records: Mapping[Split, EvalRecord], origin: Origin) -> str:
    where = "" if origin.iteration is None else f" at iteration {origin.iteration}"
    names = {"valid": "validation", "test": "test"}
    samples = recipe.evaluation.iters * recipe.train.global_batch_size
    return "\n".join(
        f"{names[split]}{where} | loss {number(record.lm_loss, '.6f')} | ppl {number(record.ppl, '.6g')} | "
        f"{samples:,} samples of {recipe.model.seq_length:,} tokens"
        for split, record in records.items()
    )


def _json(recipe: Recipe, records: Mapping[Split, EvalRecord], origin: Origin) -> str:
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
