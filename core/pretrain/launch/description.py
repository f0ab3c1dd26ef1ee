"""Description of a placement: the output of --dry-run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import DataError
from pretrain.launch.inputs import built_inputs
from pretrain.recipe.layout import lay_out
from pretrain.recipe.load import to_yaml
from pretrain.report.flops import flops_per_sequence, parameter_count

if TYPE_CHECKING:
    from pretrain.launch.rank_placement import Placement
    from pretrain.recipe import Layout, Recipe


def describe(placement: Placement) -> str:
    """Return the complete recipe as YAML, with layout, size and notices as comments at its end."""
    layout = lay_out(placement.recipe, placement.world_size)
    device = [placement.absent or placement.backend.label]
    lines = [
        *device,
        *_hosts(placement),
        _ranks(layout),
        *_stages(layout),
        _batch(placement.recipe, layout),
        *_size(placement.recipe),
    ]
    built = built_inputs(placement.recipe)
    notices = [line for line in (placement.notice, placement.memory_notice, built, *placement.recipe.notices) if line]
    return "\n".join([to_yaml(placement.recipe).rstrip(), "", *(f"# {line}" for line in (*lines, *notices))])


def _hosts(placement: Placement) -> list[str]:
    if placement.hosted is None:
        return []
    return [f"hosts: {placement.hosted.hosts}; started by {placement.hosted.launcher}"]


def _ranks(layout: Layout) -> str:
    return (
        f"ranks: {layout.world_size} = tensor {layout.tensor_model_parallel_size} x "
        f"pipeline {layout.pipeline_model_parallel_size} x data {layout.data_parallel_size}"
    )


def _stages(layout: Layout) -> list[str]:
    if layout.pipeline_model_parallel_size == 1:
        return []
    return [f"layers of each stage: {layout.stages}"]


def _batch(recipe: Recipe, layout: Layout) -> str:
    batch = recipe.train.global_batch_size
    return (
        f"batch: {batch} samples = micro batch {layout.micro_batch_size} x data {layout.data_parallel_size} x "
        f"{layout.num_microbatches(batch)} micro batches a step"
    )


def _size(recipe: Recipe) -> list[str]:
    """Return parameters and FLOPs, if the tokenizer that they depend on exists already."""
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415  only here

    try:
        vocab_size = recipe.padded_vocab_size(load_tokenizer(recipe.tokenizer).vocab_size)
    except DataError as error:
        why = str(error).splitlines()[0]
        return [f"parameters: {parameter_count(recipe.model, 0):,} without the vocabulary's, which is unknown: {why}"]
    tokens = recipe.train.global_batch_size * recipe.model.seq_length
    flops = flops_per_sequence(recipe.model, vocab_size) * recipe.train.global_batch_size
    return [
        f"parameters: {parameter_count(recipe.model, vocab_size):,}, vocabulary padded to {vocab_size}",
        f"step: {tokens:,} tokens, {flops / 1e12:.4g} model TFLOP",
    ]
