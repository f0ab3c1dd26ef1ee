"""Memory of a choice: state by the number of parameters, activations by micro-batches in flight, and what passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.engine.optimizers.choice import state_bytes as optimizer_state_bytes
from pretrain.model.requests import compute_dtype

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.search.choices import Choice
    from pretrain.tools.plan.search.pieces import Pieces

FP32 = 4
"""Bytes of an element."""
RESERVED = 0.5
"""Memory that the allocator often holds beyond what it hands out, in that of the activations, which come and go in
another order than they were allocated. In full plans of GPT-3 and smaller models it was 0.07 to 0.57."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLoad:
    """Model on one stage, and what is in flight there.

    Attributes:
        layers: of all chunks.
        passes: forward passes of chunks that are in flight at most.
        chunks: of the stage.
        parameters: of one rank.
        is_first: has the embedding.
        is_last: has the head.
    """

    layers: int
    passes: int
    chunks: int
    parameters: int
    is_first: bool
    is_last: bool


def stage_load(layout: Layout, pieces: Pieces, stage: int, micro_batches: int) -> StageLoad:
    """Return the load of a stage.

    Micro-batches in flight are those of `pretrain.tools.plan.trace.stages.planned_micro_batches`.

    Args:
        layout: of the ranks.
        pieces: of the model.
        stage: from 0.
        micro_batches: of a step.
    """
    size, chunks = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size or 1
    layers = sum(layout.layers_of_chunks[stage::size])
    is_first, is_last = stage == 0, stage == size - 1
    parameters = layers * pieces.layer.parameters
    parameters += pieces.embedding.parameters if is_first else 0
    parameters += pieces.head.parameters if is_last else 0
    parameters += pieces.tied if is_last and not is_first else 0
    passes = size - stage if chunks == 1 else 2 * (size - stage - 1) + (chunks - 1) * size + 1
    return StageLoad(
        layers=layers,
        passes=min(passes, micro_batches * chunks),
        chunks=chunks,
        parameters=parameters,
        is_first=is_first,
        is_last=is_last,
    )


def stage_peak(recipe: Recipe, choice: Choice, pieces: Pieces, load: StageLoad, group_bytes: int) -> int:
    """Return about the bytes of the device's memory that a stage takes at its peak.

    The middle between an allocator that holds nothing beyond what it hands out, and one that holds `RESERVED`, where
    the update finds no room between activations that were freed.

    Args:
        recipe: what is planned.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
        load: of the stage.
        group_bytes: of context and process groups.
    """
    static, update = state_bytes(recipe, choice, load.parameters)
    activations = _activations(choice, pieces, load)
    least, often = max(update, activations), activations + max(update, round(RESERVED * activations))
    return static + group_bytes + (least + often) // 2


def state_bytes(recipe: Recipe, choice: Choice, parameters: int) -> tuple[int, int]:
    """Return the bytes of weights, gradients and optimizer, and those that the update takes in passing.

    Main weights in fp32 and Adam's two moments are 12 bytes of a parameter beside weights of 2 bytes, 8 beside fp32
    weights (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1). The update makes fp32 gradients of fp16 and bf16.

    Args:
        recipe: what is planned.
        choice: of the layout, with the stage of ZeRO.
        parameters: of a rank.
    """
    zero, data = choice.zero, choice.data
    weight = compute_dtype(recipe).itemsize
    is_megatron = recipe.engine.name == "megatron"
    gradient = FP32 if is_megatron and recipe.precision.grad_reduce_in_fp32 else weight
    main = optimizer_state_bytes(recipe.optimizer) + (FP32 if weight < FP32 else 0)
    offload = recipe.engine.zero
    if offload.offload_param.device != "none":
        weight = 0
    optimizer = 0 if offload.offload_optimizer.device != "none" else main
    passing = FP32 if gradient < FP32 and optimizer else 0
    shares = (
        weight / (data if zero >= 3 else 1),
        (0 if not optimizer and zero >= 2 else gradient) / (data if zero >= 2 else 1),
        optimizer / (data if zero >= 1 else 1),
    )
    return round(sum(shares) * parameters), round(passing / (data if zero >= 1 else 1) * parameters)


def _activations(choice: Choice, pieces: Pieces, load: StageLoad) -> int:
    """Return the bytes at the peak of a stage's activations."""
    layer, samples = pieces.layer, choice.micro_batch
    kept, again = {
        "none": (layer.kept, 0),
        "selective": (layer.kept - layer.kept_by_attention, layer.kept_by_attention),
        "full": (pieces.entering, layer.kept),
    }[choice.recompute]
    in_flight = samples * (load.passes * load.layers * kept // load.chunks + _ends(pieces, load))
    in_layer = in_flight + samples * again + pieces.passing_in_layer.bytes(samples)
    return max(in_layer, in_flight + pieces.passing_in_head.bytes(samples)) if load.is_last else in_layer


def _ends(pieces: Pieces, load: StageLoad) -> int:
    """Return what passes in flight keep besides their layers, for one sample.

    A chunk keeps its input too, and not its output, which is sent on and freed; that of the last one goes to the head.
    """
    begins = -(-load.passes // load.chunks) if load.is_first else 0
    kept = begins * pieces.embedding.kept + (load.passes - begins) * pieces.entering
    return kept - (0 if load.is_last else load.passes * pieces.entering)
