"""Numbers of layers of the pipeline stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe.sections.parallel import ParallelSection

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
