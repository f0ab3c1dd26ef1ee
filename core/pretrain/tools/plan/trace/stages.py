"""Ranks of a layout that differ: the first, the second and the last pipeline stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe.layout import Layout


def differing_stages(layout: Layout) -> list[int]:
    """Return the stages to plan: the first has the embedding, the last the loss.

    Between them memory falls from stage to stage under 1F1B, since fewer micro-batches are in flight; the second is
    planned. Those that have more layers than it are planned too.
    """
    stages = layout.pipeline_model_parallel_size
    layers = [sum(layout.layers_of_chunks[stage::stages]) for stage in range(stages)]
    chosen = {0, min(1, stages - 1), stages - 1}
    most = layers[min(1, stages - 1)]
    for stage in range(2, stages - 1):
        if layers[stage] > most:
            chosen.add(stage)
            most = layers[stage]
    return sorted(chosen)


def first_rank(layout: Layout, stage: int) -> int:
    """Return the first rank of a stage; megatron-core's order is tensor, data, pipeline."""
    return stage * layout.tensor_model_parallel_size * layout.data_parallel_size


def layers_of(layout: Layout, stage: int) -> str:
    """Return the layers of a stage in words: "12", or those of its chunks, "6+6"."""
    return "+".join(map(str, layout.layers_of_chunks[stage :: layout.pipeline_model_parallel_size]))


def planned_micro_batches(layout: Layout, stage: int, num_microbatches: int) -> tuple[int, int]:
    """Return the micro-batches of two steps: the fewest, and as many as the schedule needs for its peak.

    Under 1F1B stage r of p has at most p - r micro-batches in flight (Narayanan et al. 2021, arXiv:2104.04473, section
    2.2.1); one more shows a forward pass after a backward pass. The interleaved schedule runs
    2 (p - r - 1) + (v - 1) p forward passes of chunks first (get_pp_rank_microbatches in megatron-core's
    pipeline_parallel/schedules.py), and takes micro-batches p at a time.

    Args:
        layout: of the ranks.
        stage: from 0.
        num_microbatches: of a step.
    """
    stages, chunks = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    if chunks is None or stages == 1:
        return 1, min(num_microbatches, stages - stage + 1)
    first = 2 * (stages - stage - 1) + (chunks - 1) * stages
    needed = -(-(first + 2) // (chunks * stages)) * stages
    return stages, min(num_microbatches, max(needed, 2 * stages))
