"""Estimates of a layout's memory and time from traced pieces, to choose which layouts are planned in full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pretrain.engine.optimizers.choice import most_state_bytes
from pretrain.engine.optimizers.choice import state_bytes as optimizer_state_bytes
from pretrain.model.requests import compute_dtype
from pretrain.recipe.layout import layers_with_experts
from pretrain.tools.plan.stage_plan import Costs, Message, Operation
from pretrain.tools.plan.step_time import Range, step_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.search.choices import LayoutChoice
    from pretrain.tools.plan.search.trace_pieces import ModelPiece, Pieces

Item = TypeVar("Item")
FP32 = 4  # bytes of an element
RESERVED = 0.5
"""Memory that the allocator often holds beyond what it hands out, in that of the activations, which come and go in
another order than they were allocated. In full plans of GPT-3 and smaller models it was 0.07 to 0.57."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLoad:
    """Part of the model on one stage, and its passes in flight."""

    layers: int
    dense: int  # of them, those of `Pieces.dense`
    passes: int  # forward passes of chunks that are in flight at most
    chunks: int
    parameters: int
    experts: int  # parameters of experts, among them
    outside: int  # those outside of the layers: embeddings and what the head has
    is_first: bool
    is_last: bool


def _loads(recipe: Recipe, layout: Layout, pieces: Pieces) -> dict[int, StageLoad]:
    """Return the loads of the stages that differ; between them they fall from the second on."""
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    with_experts = layers_with_experts(recipe, layout)
    is_uneven = len(set(layout.layers_of_chunks)) > 1 or len(set(with_experts)) > 1
    last = layout.pipeline_model_parallel_size - 1
    stages = range(last + 1) if is_uneven else sorted({0, min(1, last), last})
    return {stage: stage_load(layout, pieces, stage, micro_batches, with_experts[stage]) for stage in stages}


def layout_peak(recipe: Recipe, device: PlanDevice, choice: LayoutChoice, pieces: Pieces) -> int:
    """Estimate the memory of a layout's fullest stage, within a tenth of that of a full plan."""
    layout = choice.layout(recipe)
    groups = device.group_bytes(layout)
    return max(stage_peak(recipe, choice, pieces, load, groups) for load in _loads(recipe, layout, pieces).values())


def estimated_seconds(chosen: Recipe, device: PlanDevice, choice: LayoutChoice, pieces: Pieces) -> Range | None:
    """Return the time of a step; None if the device's peak or its memory's bandwidth is not known."""
    if device.peak_flops is None or device.figures.memory_bandwidth is None:
        return None
    layout, reached = choice.layout(chosen), device.reached
    loads = _loads(chosen, layout, pieces)
    costs = {stage: stage_costs(chosen, choice, pieces, load) for stage, load in loads.items()}
    best, worst = (step_parts(chosen, device, layout, costs, each).seconds for each in (reached.best, reached.worst))
    return Range(best, worst)


def stage_costs(recipe: Recipe, choice: LayoutChoice, pieces: Pieces, load: StageLoad) -> Costs:
    """Return the work of a step on one stage."""
    forward, backward, sent = Counter[Operation](), Counter[Operation](), Counter[Message]()
    once = dict[Operation, float]()
    ends = [(pieces.embedding, int(load.is_first)), (pieces.head, int(load.is_last))]
    kinds = _kinds(pieces, load)
    for piece, count in [*((kind.layer, count) for kind, count in kinds), *ends]:
        _add(forward, piece.forward, count)
        _add(backward, piece.backward, count)
        for operation, number in piece.update.items():
            once[operation] = once.get(operation, 0.0) + number * count * _updated(choice, piece, pieces)
        _add(sent, piece.sent_forward, count)
        _add(sent, piece.sent_backward, count)
    for kind, count in kinds:
        if choice.recompute == "full":
            _add(backward, kind.layer.forward, count)
            _add(sent, kind.layer.sent_forward, count)
        elif choice.recompute == "selective":
            _add(backward, kind.layer.attention, count)
    fixed = frozenset[Operation]().union(*(kind.layer.fixed for kind, _ in kinds))
    messages = _sent(choice, sent) | _between_stages(choice, pieces, load)
    if choice.replicas > 1 and choice.zero == 3:  # it gathers weights for the forward pass and for the backward one
        moved = load.parameters * compute_dtype(recipe).itemsize
        messages[Message("all-gather", "data", choice.replicas, moved, overlaps=True)] = 2.0
    return Costs(
        forward=_for_samples(forward, fixed, choice.micro_batch),
        backward=_for_samples(backward, fixed, choice.micro_batch),
        once=once,
        messages=messages,
        messages_once=_between_replicas(recipe, choice, load),
    )


def _kinds(pieces: Pieces, load: StageLoad) -> list[tuple[Pieces, int]]:
    """Return the pieces of the kinds of layers that a stage has, and how many it has of each."""
    kinds = [(pieces, load.layers - load.dense), (pieces.dense or pieces, load.dense)]
    return [(kind, count) for kind, count in kinds if count]


def _sent(choice: LayoutChoice, sent: Mapping[Message, int]) -> dict[Message, float]:
    """Return the messages of a micro-batch, of which those between experts were traced with fewer ranks."""
    found: dict[Message, float] = {}
    for message, count in sent.items():
        size = choice.expert * choice.expert_tensor if message.group == "experts" else message.size
        scaled = replace(message, moved=message.moved * choice.micro_batch, size=size)
        found[scaled] = found.get(scaled, 0.0) + count
    return found


def _updated(choice: LayoutChoice, piece: ModelPiece, pieces: Pieces) -> float:
    """Return how much of a piece's update one rank does."""
    if not piece.experts:
        return 1 / choice.replicas if choice.zero else 1.0
    experts = piece.experts * pieces.expert_ranks / choice.expert
    of_data, of_experts = (choice.replicas, choice.expert_data) if choice.zero else (1, 1)
    return ((piece.parameters - piece.experts) / of_data + experts / of_experts) / piece.parameters


def _add(found: Counter[Item], items: Mapping[Item, int], count: int) -> None:
    for item, number in items.items():
        found[item] += number * count


def _for_samples(work: Mapping[Operation, int], fixed: frozenset[Operation], samples: int) -> dict[Operation, float]:
    if samples == 1:
        return dict(work)
    found: dict[Operation, float] = {}
    for operation, count in work.items():
        larger = replace(operation, flops=operation.flops * samples, moved=operation.moved * samples)
        key = operation if operation in fixed else larger
        found[key] = found.get(key, 0) + count
    return found


def _between_stages(choice: LayoutChoice, pieces: Pieces, load: StageLoad) -> dict[Message, float]:
    """Return what a stage receives: activations of the one before, gradients of the one after."""
    if choice.pipeline == 1:
        return {}
    moved = pieces.entering * choice.micro_batch
    sides = 2 * choice.chunks - int(load.is_first) - int(load.is_last)
    return {Message("receive", "pipeline", choice.pipeline, moved): float(sides)}


def _between_replicas(recipe: Recipe, choice: LayoutChoice, load: StageLoad) -> dict[Message, float]:
    others = _of_group(recipe, choice, "data", choice.replicas, load.parameters - load.experts)
    return others | _of_group(recipe, choice, "expert data", choice.expert_data, load.experts)


def _of_group(recipe: Recipe, choice: LayoutChoice, group: str, size: int, parameters: int) -> dict[Message, float]:
    if size == 1 or not parameters:
        return {}
    weight = compute_dtype(recipe).itemsize
    parallel, zero = recipe.parallel, recipe.engine.zero
    if recipe.engine.name == "megatron":
        gradient = FP32 if recipe.precision.grad_reduce_in_fp32 else weight
        reduces, gathers = parallel.overlap_grad_reduce, parallel.overlap_param_gather
        bucket = parallel.ddp_bucket_size or max(40_000_000, 1_000_000 * choice.replicas)
    else:
        gradient, gathers, bucket = weight, False, zero.reduce_bucket_size
        reduces = choice.zero == 3 if zero.overlap_comm is None else zero.overlap_comm
    count = max(1.0, parameters / bucket) if reduces or gathers else 1.0
    moved = round(parameters / count)
    summing = "all-reduce" if choice.zero == 0 else "reduce-scatter"
    found = {Message(summing, group, size, moved * gradient, reduces): count}
    if choice.zero in {1, 2}:
        found[Message("all-gather", group, size, moved * weight, gathers)] = count
    return found


def stage_load(layout: Layout, pieces: Pieces, stage: int, micro_batches: int, with_experts: int) -> StageLoad:
    """Return the load of a stage; micro-batches in flight are those of `stage_tracing.planned_micro_batches`."""
    size, chunks = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size or 1
    layers, layer = layout.layers_of_stages[stage], pieces.layer
    is_first, is_last = stage == 0, stage == size - 1
    dense = layers - with_experts if pieces.dense else 0
    experts = (layers - dense) * layer.experts * pieces.expert_ranks // (layout.expert_model_parallel_size or 1)
    parameters = (layers - dense) * (layer.parameters - layer.experts) + experts
    parameters += dense * pieces.dense.layer.parameters if pieces.dense else 0
    outside = pieces.embedding.parameters if is_first else 0
    outside += pieces.head.parameters if is_last else 0
    outside += pieces.tied if is_last and not is_first else 0
    passes = size - stage if chunks == 1 else 2 * (size - stage - 1) + (chunks - 1) * size + 1
    return StageLoad(
        layers=layers,
        dense=dense,
        passes=min(passes, micro_batches * chunks),
        chunks=chunks,
        parameters=parameters + outside,
        experts=experts,
        outside=outside,
        is_first=is_first,
        is_last=is_last,
    )


def stage_peak(recipe: Recipe, choice: LayoutChoice, pieces: Pieces, load: StageLoad, group_bytes: int) -> int:
    """Estimate the bytes of the device's memory that a stage takes at its peak."""
    # The middle between an allocator that holds nothing beyond what it hands out, and one that holds `RESERVED`, where
    # the update finds no room between activations that were freed.
    static, update = state_bytes(recipe, choice, load.parameters, load.experts, load.outside)
    activations = _activations(choice, pieces, load)
    least, often = max(update, activations), activations + max(update, round(RESERVED * activations))
    return static + group_bytes + (least + often) // 2


def state_bytes(
    recipe: Recipe, choice: LayoutChoice, parameters: int, experts: int = 0, outside: int = 0
) -> tuple[int, int]:
    """Return the bytes of weights, gradients and optimizer, and those that the update takes in passing.

    `experts`: parameters among them that are divided over the ranks with equal experts alone. `outside`: those outside
    of the layers, of which Muon keeps Adam's two states.
    """
    of_layers, most = optimizer_state_bytes(recipe.optimizer), most_state_bytes(recipe.optimizer)
    counted = (
        (parameters - experts - outside, _bytes_of_one(recipe, choice, choice.replicas, of_layers)),
        (experts, _bytes_of_one(recipe, choice, choice.expert_data, of_layers)),
        (outside, _bytes_of_one(recipe, choice, choice.replicas, most)),
    )
    static, passing = (round(sum(count * each[part] for count, each in counted)) for part in (0, 1))
    return static, passing


def _bytes_of_one(recipe: Recipe, choice: LayoutChoice, replicas: int, state: int) -> tuple[float, float]:
    """Return the same for one parameter, with so many replicas and bytes of the optimizer's state."""
    # Main weights in fp32 and Adam's moments are 12 bytes of a parameter beside weights of 2 bytes, 8 beside fp32 ones
    # (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1). The update makes fp32 gradients of fp16 and bf16 ones.
    zero = choice.zero
    weight = compute_dtype(recipe).itemsize
    is_megatron = recipe.engine.name == "megatron"
    gradient = FP32 if is_megatron and recipe.precision.grad_reduce_in_fp32 else weight
    main = state + (FP32 if weight < FP32 else 0)
    offload = recipe.engine.zero
    if offload.offload_param.device != "none":
        weight = 0
    optimizer = 0 if offload.offload_optimizer.device != "none" else main
    passing = FP32 if gradient < FP32 and optimizer else 0
    shares = (
        weight / (replicas if zero >= 3 else 1),
        (0 if not optimizer and zero >= 2 else gradient) / (replicas if zero >= 2 else 1),
        optimizer / (replicas if zero >= 1 else 1),
    )
    return sum(shares), passing / (replicas if zero >= 1 else 1)


def _activations(choice: LayoutChoice, pieces: Pieces, load: StageLoad) -> int:
    samples, kept, passing = choice.micro_batch, 0, 0
    for kind, count in _kinds(pieces, load):
        layer = kind.layer
        of_layer, again = {
            "none": (layer.kept, 0),
            "selective": (layer.kept - layer.kept_by_attention, layer.kept_by_attention),
            "full": (pieces.entering, layer.kept),
        }[choice.recompute]
        kept += count * of_layer
        passing = max(passing, samples * again + kind.passing_in_layer.bytes(samples))
    in_flight = samples * (load.passes * kept // load.chunks + _ends(pieces, load))
    in_layer = in_flight + passing
    return max(in_layer, in_flight + pieces.passing_in_head.bytes(samples)) if load.is_last else in_layer


def _ends(pieces: Pieces, load: StageLoad) -> int:
    """Return the bytes per sample that passes in flight keep outside of their layers."""
    # A chunk keeps its input too, and not its output, which is sent on and freed; that of the last goes to the head.
    begins = -(-load.passes // load.chunks) if load.is_first else 0
    kept = begins * pieces.embedding.kept + (load.passes - begins) * pieces.entering
    return kept - (0 if load.is_last else load.passes * pieces.entering)
