"""Division of the ranks among tensor, pipeline and data parallelism, and the sizes of a rank's linears."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Sizes of the parallel groups of one run."""

    world_size: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    data_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None  # chunks of a stage; None without the interleaved schedule
    layers_of_chunks: tuple[int, ...]  # of every stage, or of every chunk, in the order of the layers
    micro_batch_size: int
    context_parallel_size: int = 1  # ranks that share a sequence
    expert_model_parallel_size: int | None = None  # ranks that share a layer's experts; None without experts
    expert_tensor_parallel_size: int | None = None  # ranks that share an expert; None without experts

    @property
    def ranks_of_experts(self) -> int:
        """The number of ranks that hold the experts of a layer together; the tensor-parallel size without experts."""
        expert_tensor = self.expert_tensor_parallel_size or self.tensor_model_parallel_size
        return (self.expert_model_parallel_size or 1) * expert_tensor

    @property
    def replicas(self) -> int:
        """The number of ranks that hold equal weights, over which ZeRO divides: data x context."""
        return self.data_parallel_size * self.context_parallel_size

    @property
    def expert_data_parallel_size(self) -> int:
        """The number of ranks that hold equal experts; `replicas` without experts."""
        return self.world_size // (self.ranks_of_experts * self.pipeline_model_parallel_size)

    @property
    def sizes(self) -> str:
        """The sizes as text: "tensor 2 x pipeline 1 x data 4", and those of experts where the model has them."""
        stages = f"pipeline {self.pipeline_model_parallel_size}"
        context = f"context {self.context_parallel_size} x " if self.context_parallel_size > 1 else ""
        sizes = f"tensor {self.tensor_model_parallel_size} x {stages} x {context}data {self.data_parallel_size}"
        return f"{sizes}; {self.expert_sizes}" if self.expert_sizes else sizes

    @property
    def expert_sizes(self) -> str:
        """The sizes of experts: "experts: tensor 1 x expert 8 x pipeline 1 x data 1"; "" without experts."""
        if self.expert_model_parallel_size is None:
            return ""
        held = f"tensor {self.expert_tensor_parallel_size} x expert {self.expert_model_parallel_size}"
        return f"experts: {held} x pipeline {self.pipeline_model_parallel_size} x data {self.expert_data_parallel_size}"

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """The number of layers of every stage, over all of its chunks."""
        size = self.pipeline_model_parallel_size
        return tuple(sum(self.layers_of_chunks[stage::size]) for stage in range(size))

    @property
    def stages(self) -> str:
        """The layers of every stage as text: "6" for all, "5, 6, 6, 5", chunks of one stage joined by "+"."""
        size = self.pipeline_model_parallel_size
        stages = ["+".join(map(str, self.layers_of_chunks[stage::size])) for stage in range(size)]
        return stages[0] if len(set(stages)) == 1 else ", ".join(stages)

    def num_microbatches(self, global_batch_size: int) -> int:
        """Return the micro batches that one rank accumulates in a step of `global_batch_size` samples."""
        return global_batch_size // (self.micro_batch_size * self.data_parallel_size)


def global_batch_sizes(recipe: Recipe) -> list[int]:
    """Return every global batch size that occurs, in order."""
    last = recipe.train.global_batch_size
    if recipe.train.rampup_batch_size is None:
        return [last]
    start, increment, _ = recipe.train.rampup_batch_size
    return [*range(start, last, increment), last]


def lay_out(recipe: Recipe, world_size: int) -> Layout:
    """Divide `world_size` ranks as the recipe says, or raise RecipeError where they or a global batch do not divide."""
    parallel = recipe.parallel
    if world_size < 1 or world_size % recipe.model_parallel_size:
        keys = ["tensor_model_parallel_size", "pipeline_model_parallel_size"]
        keys += ["context_parallel_size"] * (parallel.context_parallel_size > 1)
        msg = (
            f"{recipe.source}: {world_size} ranks cannot hold "
            f"{' x '.join(f'{key} {getattr(parallel, key)}' for key in keys)} = {recipe.model_parallel_size}.\n"
            f"Start a multiple of {recipe.model_parallel_size} ranks, or change these keys of section parallel."
        )
        raise RecipeError(msg)
    _check_experts(recipe, world_size)
    layout = unchecked_layout(recipe, world_size)
    for batch in global_batch_sizes(recipe):
        _check_batch(recipe, layout, batch)
    _check_accumulation(recipe, layout)
    return layout


def _check_experts(recipe: Recipe, world_size: int) -> None:
    parallel = recipe.parallel
    sizes = {
        "expert_model_parallel_size": parallel.expert_model_parallel_size,
        "expert_tensor_parallel_size": parallel.expert_tensor_parallel_size,
        "pipeline_model_parallel_size": parallel.pipeline_model_parallel_size,
    }
    product = math.prod(sizes.values())
    if recipe.model.num_experts is not None and world_size % product:
        msg = (
            f"{recipe.source}: {world_size} ranks cannot hold {' x '.join(f'{key} {n}' for key, n in sizes.items())} = "
            f"{product}.\nStart a multiple of {product} ranks, or change these keys of section parallel."
        )
        raise RecipeError(msg)


def unchecked_layout(recipe: Recipe, world_size: int) -> Layout:
    """Divide ranks that divide; no batch is looked at, for models that a tool makes of a recipe and never trains."""
    parallel, has_experts = recipe.parallel, recipe.model.num_experts is not None
    return Layout(
        world_size=world_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        data_parallel_size=world_size // recipe.model_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
        layers_of_chunks=recipe.layers_of_chunks,
        micro_batch_size=recipe.train.micro_batch_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size if has_experts else None,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size if has_experts else None,
    )


def layers_with_experts(recipe: Recipe, layout: Layout) -> list[int]:
    """Return how many layers of each stage have experts."""
    found, layers = [0] * layout.pipeline_model_parallel_size, iter(recipe.model.layers_with_experts)
    for chunk, count in enumerate(layout.layers_of_chunks):
        found[chunk % len(found)] += sum(islice(layers, count))
    return found


def _check_batch(recipe: Recipe, layout: Layout, batch: int) -> None:
    share = layout.micro_batch_size * layout.data_parallel_size
    is_last = batch == recipe.train.global_batch_size
    what = f"train.global_batch_size {batch}" if is_last else f"a batch of {batch} (train.rampup_batch_size)"
    if batch % share:
        msg = (
            f"{recipe.source}: {what} is not a multiple of train.micro_batch_size {layout.micro_batch_size} x "
            f"data-parallel size {layout.data_parallel_size} = {share}.\n"
            f"The data-parallel size is {layout.world_size} ranks / {recipe.model_parallel_size} (tensor x pipeline"
            f"{' x context' if layout.context_parallel_size > 1 else ''}). Change one of the two sizes."
        )
        raise RecipeError(msg)
    stages = layout.pipeline_model_parallel_size
    if layout.virtual_pipeline_model_parallel_size and layout.num_microbatches(batch) % stages:
        msg = (
            f"{recipe.source}: {what} gives {layout.num_microbatches(batch)} micro batches, not a multiple of "
            f"parallel.pipeline_model_parallel_size {stages}.\n"
            "The interleaved schedule needs that: change the batch, or leave out virtual_pipeline_model_parallel_size."
        )
        raise RecipeError(msg)


def _check_accumulation(recipe: Recipe, layout: Layout) -> None:
    given, batch = recipe.accumulation_steps, recipe.train.global_batch_size
    if given is not None and given.steps != layout.num_microbatches(batch):
        msg = (
            f"{given.place}: {given.steps}, but {layout.world_size} ranks accumulate "
            f"{layout.num_microbatches(batch)}: train.global_batch_size {batch} / (train.micro_batch_size "
            f"{layout.micro_batch_size} x data-parallel size {layout.data_parallel_size}).\n"
            "Delete the key, which follows from these, or change one of them."
        )
        raise RecipeError(msg)


def linear_shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Return inputs and outputs of a rank's linears, each pair once: into the MLP first, then out, QKV, projection.

    The MLP is that of layers without experts, and that of shared experts.
    """
    model, tensor = recipe.model, recipe.parallel.tensor_model_parallel_size
    hidden, gates = model.hidden_size, 2 if model.activation == "swiglu" else 1
    dense = None if all(model.layers_with_experts) else model.ffn_hidden_size
    widths = [width // tensor for width in (dense, model.moe_shared_expert_intermediate_size) if width]
    heads = model.num_attention_heads * model.head_size // tensor
    groups = model.num_query_groups * model.head_size // tensor
    mlp = [shape for width in widths for shape in ((hidden, gates * width), (width, hidden))]
    return list(dict.fromkeys([*mlp, (hidden, heads + 2 * groups), (heads, hidden)]))
