"""Search for the layouts of a number of devices that fit, cheapest first by their estimated step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.plan.search.choice_costs import stage_costs
from pretrain.plan.search.choice_memory import Peak, stage_load, stage_peak
from pretrain.plan.search.choices import Choices
from pretrain.plan.search.pieces_of_traces import trace_pieces
from pretrain.plan.search.set_arguments import set_arguments
from pretrain.plan.stage_plan import StagePlan
from pretrain.plan.time.efficiencies import BEST, WORST
from pretrain.plan.time.step_parts import step_parts
from pretrain.plan.time.step_time import Range
from pretrain.recipe.checks import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.plan.device import PlanDevice
    from pretrain.plan.search.choice_memory import StageLoad
    from pretrain.plan.search.choices import Choice
    from pretrain.plan.search.pieces import Pieces
    from pretrain.recipe import Recipe

SHOWN = 5
LARGEST = 16
"""Factor of the devices up to which a number that is enough is looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Layout that was looked at.

    Attributes:
        choice: of the layout.
        arguments: values of `--set` that make it of the recipe; only what differs.
        peak_bytes: bytes of a device's memory that the fullest stage takes, by the model of pieces; within a tenth of
            those of a full plan.
        most_bytes: these with the most that the allocator may hold: a layout fits if these do.
        seconds: of a step; None where the device's figures are not known.
    """

    choice: Choice
    arguments: tuple[str, ...]
    peak_bytes: int
    most_bytes: int
    seconds: Range | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Result of a search.

    Attributes:
        device: with its figures.
        devices: their number.
        tried: legal layouts.
        fitting: those of them that fit; all, where the device's memory is not known.
        best: at most `SHOWN` of them, cheapest first; each differs from the others in more than savings of memory.
        too_large: layouts that do not fit.
        nearest: the one of them that needs the least memory to fit; None if all fit.
        refused: number of sizes that are not legal, by reason.
        enough: where nothing fits, the first of two, four, ... `LARGEST` times as many devices for which some do,
            and its fastest layout; else None, as where ranks share the memory.
    """

    device: PlanDevice
    devices: int
    tried: int
    fitting: int
    best: Sequence[Found]
    too_large: int
    nearest: Found | None
    refused: Mapping[str, int]
    enough: tuple[int, Found] | None = None


def search(recipe: Recipe, device: PlanDevice, devices: int, vocab_size: int) -> SearchResult:
    """Try all legal layouts by a model of traced pieces.

    Args:
        recipe: whose model and batch are laid out.
        device: that is planned for.
        devices: their number.
        vocab_size: entries of the tokenizer, before padding.

    Raises:
        PretrainError: an operation has no allowed kernel.
    """
    choices = Choices(recipe, devices, device.figures.devices_per_node)
    legal = list(choices)
    keys = {(choice.tensor, choice.with_sequence) for choice in legal}
    pieces = trace_pieces(recipe, device, vocab_size, keys) if keys else {}
    sized = _sized(recipe, device, pieces, legal)
    memory = device.memory
    fitting = [(peak, choice) for peak, choice in sized if memory is None or peak.most <= memory]
    others = [(peak, choice) for peak, choice in sized if memory is not None and peak.most > memory]
    nearest = min(others, key=lambda each: each[0].most, default=None)
    return SearchResult(
        device=device,
        devices=devices,
        tried=len(legal),
        fitting=len(fitting),
        best=_best(recipe, [_found(recipe, device, pieces, *each) for each in fitting]),
        too_large=len(others),
        nearest=nearest and _found(recipe, device, pieces, *nearest),
        refused=dict(choices.refused),
        enough=None if fitting or memory is None else _enough(recipe, device, devices, pieces, memory),
    )


def _sized(
    recipe: Recipe, device: PlanDevice, pieces: Mapping[tuple[int, bool], Pieces], choices: Iterable[Choice]
) -> list[tuple[Peak, Choice]]:
    """Return the peak of each choice whose tensor-parallel size was traced."""
    keyed = (((choice.tensor, choice.with_sequence), choice) for choice in choices)
    return [(layout_peak(recipe, device, choice, pieces[key]), choice) for key, choice in keyed if key in pieces]


def _enough(
    recipe: Recipe, device: PlanDevice, devices: int, pieces: Mapping[tuple[int, bool], Pieces], memory: int
) -> tuple[int, Found] | None:
    if device.is_shared:
        return None
    factor = 2
    while factor <= LARGEST:
        choices = Choices(recipe, devices * factor, device.figures.devices_per_node)
        fitting = [each for each in _sized(recipe, device, pieces, choices) if each[0].most <= memory]
        best = _best(recipe, [_found(recipe, device, pieces, *each) for each in fitting])
        if best:
            return devices * factor, best[0]
        factor *= 2
    return None


def _loads(recipe: Recipe, choice: Choice, pieces: Pieces) -> dict[int, StageLoad]:
    """Return the loads of the stages that differ; between them they fall from the second on."""
    layout = choice.layout(recipe)
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    is_uneven = len(set(layout.layers_of_chunks)) > 1
    last = choice.pipeline - 1
    stages = range(choice.pipeline) if is_uneven else sorted({0, min(1, last), last})
    return {stage: stage_load(layout, pieces, stage, micro_batches) for stage in stages}


def layout_peak(recipe: Recipe, device: PlanDevice, choice: Choice, pieces: Pieces) -> Peak:
    """Return the memory that the fullest stage of a layout takes.

    Args:
        recipe: what is planned.
        device: with what context and process groups take.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
    """
    groups = device.group_bytes(choice.layout(recipe))
    peaks = [stage_peak(recipe, choice, pieces, load, groups) for load in _loads(recipe, choice, pieces).values()]
    return Peak(max(peak.least for peak in peaks), max(peak.middle for peak in peaks), max(peak.most for peak in peaks))


def _found(
    recipe: Recipe, device: PlanDevice, pieces: Mapping[tuple[int, bool], Pieces], peak: Peak, choice: Choice
) -> Found:
    return Found(
        choice=choice,
        arguments=set_arguments(recipe, choice),
        peak_bytes=peak.middle,
        most_bytes=peak.most,
        seconds=estimated_seconds(choice.recipe(recipe), device, choice, pieces[choice.tensor, choice.with_sequence]),
    )


def estimated_seconds(chosen: Recipe, device: PlanDevice, choice: Choice, pieces: Pieces) -> Range | None:
    """Return the time of a step; None if the device's peak or its memory's bandwidth is not known.

    Args:
        chosen: recipe with the choice.
        device: with its figures.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
    """
    if device.peak_flops is None or device.figures.memory_bandwidth is None:
        return None
    stages = [_stage(chosen, choice, pieces, stage, load) for stage, load in _loads(chosen, choice, pieces).items()]
    layout = choice.layout(chosen)
    best, worst = (step_parts(chosen, device, layout, stages, each).seconds for each in (BEST, WORST))
    return Range(best, worst)


def _stage(chosen: Recipe, choice: Choice, pieces: Pieces, stage: int, load: StageLoad) -> StagePlan:
    return StagePlan(
        stage=stage,
        rank=stage * choice.tensor * choice.data,
        layers=str(load.layers),
        parameters=load.parameters,
        parts={},
        host_bytes=0,
        peak_at="",
        micro_batches=0,
        course=(),
        modules=(),
        costs=stage_costs(chosen, choice, pieces, load),
    )


def _best(recipe: Recipe, found: list[Found]) -> list[Found]:
    """Return the cheapest of each layout and micro-batch, whose recipes have no problem, cheapest first."""
    best: dict[tuple[int, int, int, int], Found] = {}
    for each in sorted(found, key=lambda one: (one.seconds.mean if one.seconds else 0.0, one.peak_bytes)):
        choice = each.choice
        key = choice.tensor, choice.pipeline, choice.data, choice.micro_batch
        if key not in best and not _is_wrong(choice.recipe(recipe)):
            best[key] = each
        if len(best) == SHOWN:
            break
    return list(best.values())


def _is_wrong(recipe: Recipe) -> bool:
    """Return whether a recipe has a problem, but for keys without effect, which are left out as it is read."""
    return any(not problem.switched_off_by for problem in problems_of(recipe))
