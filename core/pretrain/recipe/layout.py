"""Division of the ranks among tensor, pipeline and data parallelism, and of the layers among pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe
    from pretrain.recipe.sections.parallel import ParallelSection


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
        msg = (
            f"{recipe.source}: {world_size} ranks cannot hold tensor_model_parallel_size "
            f"{parallel.tensor_model_parallel_size} x pipeline_model_parallel_size "
            f"{parallel.pipeline_model_parallel_size} = {recipe.model_parallel_size}.\n"
            f"Start a multiple of {recipe.model_parallel_size} ranks, or change these two keys of section parallel."
        )
        raise RecipeError(msg)
    layout = unchecked_layout(recipe, world_size)
    for batch in global_batch_sizes(recipe):
        _check_batch(recipe, layout, batch)
    _check_accumulation(recipe, layout)
    return layout


def unchecked_layout(recipe: Recipe, world_size: int) -> Layout:
    """Divide ranks that divide; no batch is looked at, for models that a tool makes of a recipe and never trains."""
    parallel = recipe.parallel
    return Layout(
        world_size=world_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        data_parallel_size=world_size // recipe.model_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
        layers_of_chunks=recipe.layers_of_chunks,
        micro_batch_size=recipe.train.micro_batch_size,
    )


def _check_batch(recipe: Recipe, layout: Layout, batch: int) -> None:
    share = layout.micro_batch_size * layout.data_parallel_size
    is_last = batch == recipe.train.global_batch_size
    what = f"train.global_batch_size {batch}" if is_last else f"a batch of {batch} (train.rampup_batch_size)"
    if batch % share:
        msg = (
            f"{recipe.source}: {what} is not a multiple of train.micro_batch_size {layout.micro_batch_size} x "
            f"data-parallel size {layout.data_parallel_size} = {share}.\n"
            f"The data-parallel size is {layout.world_size} ranks / {recipe.model_parallel_size} (tensor x pipeline)."
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


LIST = "parallel.pipeline_layers"
STAGES = "parallel.pipeline_model_parallel_size"
CHUNKS = "parallel.virtual_pipeline_model_parallel_size"
FIRST = "parallel.num_layers_in_first_pipeline_stage"
LAST = "parallel.num_layers_in_last_pipeline_stage"


class StagesError(ValueError):
    """The layers cannot be cut as the recipe says."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path, self.text = path, text


def layers_of_chunks(parallel: ParallelSection, num_layers: int) -> tuple[int, ...]:
    """Return the number of layers of every chunk in order: chunk c of stage s is number c * stages + s."""
    if parallel.pipeline_model_parallel_size == 1:
        return (num_layers,)  # the other keys have no effect then, which is its own problem
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    if parallel.pipeline_layers is not None:
        return _listed(parallel, parallel.pipeline_layers, num_layers)
    stages = _stages(parallel, num_layers)
    for layers in stages:
        if layers % chunks:
            raise StagesError(
                CHUNKS,
                f"{chunks} does not divide the {layers} layers of a stage. Give {LIST}, the layers of every chunk.",
            )
    return tuple(layers // chunks for layers in stages) * chunks


def _listed(parallel: ParallelSection, listed: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size or 1
    if parallel.num_layers_in_first_pipeline_stage or parallel.num_layers_in_last_pipeline_stage:
        raise StagesError(LIST, f"given together with {FIRST} or {LAST}, which it includes; choose one.")
    if len(listed) != stages * chunks:
        of = f"pipeline_model_parallel_size {stages}"
        of += f" x virtual_pipeline_model_parallel_size {chunks}" if chunks > 1 else ""
        raise StagesError(LIST, f"{len(listed)} numbers for {of}; give {stages * chunks}.")
    if sum(listed) != num_layers:
        raise StagesError(LIST, f"{list(listed)} sum to {sum(listed)} layers, not model.num_layers {num_layers}.")
    return listed


def _stages(parallel: ParallelSection, num_layers: int) -> list[int]:
    """Return the layers of every stage; those between the first and the last share the rest."""
    first, last = parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage
    given = [layers for layers in (first, last) if layers is not None]
    others, left = parallel.pipeline_model_parallel_size - len(given), num_layers - sum(given)
    if not given:
        return _evenly(parallel, num_layers)
    if not others and left:
        raise StagesError(FIRST, f"{first} and {last} sum to {sum(given)} layers, not model.num_layers {num_layers}.")
    if left < others or (others and left % others):
        raise StagesError(
            FIRST if first is not None else LAST,
            f"{' and '.join(map(str, given))} of model.num_layers {num_layers} leave {left} for the other {others} "
            f"stages, which cannot share them equally. Give {LIST}, the layers of every stage.",
        )
    middle = [left // others] * others if others else []
    return [*([] if first is None else [first]), *middle, *([] if last is None else [last])]


def _evenly(parallel: ParallelSection, num_layers: int) -> list[int]:
    stages = parallel.pipeline_model_parallel_size
    if num_layers % stages == 0:
        return [num_layers // stages] * stages
    text = f"{stages} does not divide model.num_layers {num_layers}."
    pieces = stages * (parallel.virtual_pipeline_model_parallel_size or 1)
    if num_layers > pieces:
        example = balanced_layers(num_layers, pieces)
        text += f" Give {LIST}, the layers of every {'stage' if pieces == stages else 'chunk'}, such as {example}."
    raise StagesError(STAGES, text)


def balanced_layers(num_layers: int, pieces: int) -> list[int]:
    """Return layers of stages or chunks: the ends, which have embedding and loss, have at most one less than others."""
    order = sorted(range(pieces), key=lambda piece: (abs(2 * piece - pieces + 1), piece))
    more = set(order[: num_layers % pieces])
    return [num_layers // pieces + (piece in more) for piece in range(pieces)]
