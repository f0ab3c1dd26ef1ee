"""Search for the fastest layouts that fit a number of devices."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.report.plain_text import indented
from pretrain.tools.plan.plan import make_plan
from pretrain.tools.plan.plan_views import WIDTH, verdict
from pretrain.tools.plan.search.choices import Choices, set_arguments
from pretrain.tools.plan.search.estimates import estimated_seconds, layout_peak
from pretrain.tools.plan.search.trace_pieces import trace_pieces
from pretrain.tools.plan.wording import GIB, figures_text, gib, plan_json, time_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.search.choices import LayoutChoice
    from pretrain.tools.plan.search.trace_pieces import Pieces, PiecesKey

    Say = Callable[[str], None]  # shows a line about work that takes long

SHOWN = 5
MOST_PLANS = 3  # full plans for each layout that is shown, after which the search gives up
TIMES = (2, 4, 8, 16)  # factors of the devices with which a number that is enough is looked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Layout that was planned in full."""

    choice: LayoutChoice
    arguments: tuple[str, ...]  # values of `--set` that make it of the recipe; only what differs
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Result of a search."""

    device: PlanDevice
    devices: int
    tried: int  # legal layouts
    fitting: int  # those of them that fit, or may where the memory is not known; by the estimate, or a full plan
    best: Sequence[Found]  # at most `SHOWN`, fastest first; they differ in more than savings of memory
    planned: int  # number of layouts that were planned in full
    given_up: int  # number of layouts that fit by the estimate and were not planned, since none that was planned fits
    nearest: Found | None  # the smallest layout, where none fits
    refused: Mapping[str, int]  # number of sizes that are not legal, by reason
    enough: tuple[int, Found] | None = None  # where none fits, a number of devices for which some do, and the fastest


class _Sized(NamedTuple):
    peak: int  # bytes, estimated
    choice: LayoutChoice


class _Search:
    def __init__(self, recipe: Recipe, device: PlanDevice, vocab_size: int, say: Say) -> None:
        self._recipe, self._device, self._vocab_size, self._say = recipe, device, vocab_size, say
        self._pieces: dict[PiecesKey, Pieces] = {}

    def choices(self, devices: int) -> Choices:
        return Choices(self._recipe, devices, self._device.figures.devices_per_node or devices)

    def sized(self, choices: Sequence[LayoutChoice]) -> list[_Sized]:
        keys = {choice.pieces for choice in choices} - self._pieces.keys()
        if keys:
            sizes = ", ".join(map(str, sorted({key.tensor for key in keys})))
            self._say(f"search: tracing a layer with tensor-parallel size {sizes}")
            self._pieces |= trace_pieces(self._recipe, self._device, self._vocab_size, keys)
        return [_Sized(layout_peak(self._recipe, self._device, each, self._of(each)), each) for each in choices]

    def fitting(self, sized: Sequence[_Sized]) -> list[_Sized]:
        memory = self._device.memory
        return [each for each in sized if memory is None or each.peak <= memory]

    def best(self, sized: Sequence[_Sized], shown: int = SHOWN) -> tuple[list[Found], list[Found]]:
        """Plan choices in full; return those that fit, fastest first, and those that do not."""
        # The fastest by the estimate are planned, and if none of them fits the smallest of each layout, smallest first.
        fastest = _first_of_each(sorted(sized, key=self._cost))[:shown]
        smallest = _first_of_each(sorted(sized, key=lambda each: each.peak))
        tried = [*fastest, *(choice for choice in smallest if choice not in fastest)][: MOST_PLANS * shown]
        failed: list[Found] = []
        for begin in range(0, len(tried), shown):
            end = min(begin + shown, len(tried))
            found = [self._planned(tried[number], f"layout {number + 1} of {end}") for number in range(begin, end)]
            failed += [each for each in found if each.plan.fits is False]
            if fit := [each for each in found if each.plan.fits is not False]:
                return sorted(fit, key=lambda each: each.plan.time.seconds.mean if each.plan.time else 0.0), failed
        return [], failed

    def smallest(self, sized: Sequence[_Sized], planned: Iterable[Found]) -> Found:
        """Plan the smallest choice by the estimate in full, unless it is planned already."""
        choice = min(sized, key=lambda each: each.peak).choice
        found = next((each for each in planned if each.choice == choice), None)
        return found or self._planned(choice, "the smallest layout")

    def enough(self, devices: int) -> tuple[int, Found] | None:
        """Return the first of two, four, ... times as many devices for which a layout fits, and its fastest one."""
        for factor in () if self._device.is_shared else TIMES:
            sized = self.sized(list(self.choices(devices * factor)))
            best, _ = self.best(self.fitting(sized), shown=1)
            if best:
                return devices * factor, best[0]
        return None

    def _of(self, choice: LayoutChoice) -> Pieces:
        return self._pieces[choice.pieces]

    def _cost(self, sized: _Sized) -> tuple[float, int]:
        choice = sized.choice
        seconds = estimated_seconds(choice.recipe(self._recipe), self._device, choice, self._of(choice))
        return seconds.mean if seconds else 0.0, sized.peak

    def _planned(self, choice: LayoutChoice, which: str) -> Found:
        devices = choice.devices
        self._say(f"search: planning {which} for {devices} devices in full")
        arguments = set_arguments(self._recipe, choice)
        recipe = make_recipe(self._recipe.model_dump(exclude_unset=True), arguments, self._recipe.source)
        plan = make_plan(recipe, self._device, devices=devices, vocab_size=self._vocab_size)
        return Found(choice=choice, arguments=arguments, plan=plan)


def search(recipe: Recipe, device: PlanDevice, devices: int, vocab_size: int, say: Say) -> SearchResult:
    """Estimate all legal layouts from traced pieces, and plan the fastest of those that fit in full."""
    searching = _Search(recipe, device, vocab_size, say)
    choices = searching.choices(devices)
    legal = list(choices)
    sized = searching.sized(legal)
    fitting = searching.fitting(sized)
    best, failed = searching.best(fitting)
    rest = len(fitting) - len(failed)
    smallest = None if best or not sized else searching.smallest(sized, failed)
    planned = {each.choice for each in (*best, *failed, *filter(None, (smallest,)))}
    if smallest is not None and smallest.plan.fits:  # the estimate was too high
        best, smallest, rest = [smallest], None, max(rest, 1)
    return SearchResult(
        device=device,
        devices=devices,
        tried=len(legal),
        fitting=rest if best else 0,
        best=best,
        planned=len(planned),
        given_up=0 if best else rest,
        nearest=smallest,
        refused=dict(choices.refused),
        enough=None if best else searching.enough(devices),
    )


def _first_of_each(sized: Iterable[_Sized]) -> list[LayoutChoice]:
    first: dict[tuple[int, ...], LayoutChoice] = {}
    for _, choice in sized:
        ranks = choice.tensor, choice.pipeline, choice.context, choice.data, choice.expert, choice.expert_tensor
        first.setdefault((*ranks, choice.micro_batch), choice)
    return list(first.values())


MOST_REPLICAS = 64  # replicas up to which is looked


def enough_devices(recipe: Recipe, device: PlanDevice, vocab_size: int, say: Say) -> int | None:
    """Return the least number of devices on which a recipe fits, where those of one replica are too few."""
    # It takes about six full plans: the more replicas, the less each holds. None: not with up to `MOST_REPLICAS`.
    replica = recipe.least_ranks
    sizes = [size for size in range(2 * replica, MOST_REPLICAS * replica + 1, replica) if _is_legal(recipe, size)]

    def fits(devices: int) -> bool:
        say(f"trying {devices} devices")
        return bool(make_plan(recipe, device, devices=devices, vocab_size=vocab_size).fits)

    if not sizes:
        return None
    say(f"it does not fit on {replica} device{'s' * (replica > 1)}; looking for a number that is enough")
    if not fits(sizes[-1]):
        return None
    return sizes[bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)]


def _is_legal(recipe: Recipe, devices: int) -> bool:
    try:
        lay_out(recipe, devices)
    except RecipeError:
        return False
    return True


def search_text(result: SearchResult) -> str:
    """Return the best layouts as `--set` arguments, and why others are not legal or do not fit."""
    device = result.device
    memory = "" if device.memory is None else f" with {device.memory / GIB:.0f} GiB"
    count = f"{result.fitting} of {result.tried} legal layouts fit."
    if result.given_up:
        rest = f"{result.given_up} of {result.tried} legal ones, which may fit, were not planned."
        count = f"none of the {result.planned} layouts planned in full fits; {rest}"
    lines = indented(f"{result.devices} x {device.name}{memory}: {count}", 0, WIDTH)
    if device.peak_flops and device.figures.memory_bandwidth:
        lines += indented(figures_text(device), 0, WIDTH)
    if result.best:
        lines += ["", "The fastest of the layouts planned in full:"]
    for number, found in enumerate(result.best, start=1):
        lines += ["", *indented(f"{number}. {_layout(found)}", 0, WIDTH), *_numbers(found), *_arguments(found)]
    if result.nearest or result.refused:
        lines += ["", "The rest:"]
    if result.nearest is not None and device.memory is not None:
        over = gib(result.nearest.plan.peak_bytes - device.memory)
        lines += [f"  the smallest layout takes {over} GiB too much:", *_arguments(result.nearest)]
    if result.enough is not None:
        devices, found = result.enough
        lines += indented(f"{devices} devices are enough: {_layout(found)}", 2, WIDTH)
        lines += [*_numbers(found), *_arguments(found, f"--devices {devices}")]
    for reason, number in sorted(result.refused.items()):
        lines += indented(f"{number} not legal: {reason}", 2, WIDTH)
    return "\n".join(lines)


def to_json(result: SearchResult) -> dict[str, object]:
    """Return the result as plain values."""
    return {
        **{name: getattr(result, name) for name in ("devices", "tried", "fitting", "planned", "given_up")},
        "best": [_plain(found) for found in result.best],
        "nearest": result.nearest and _plain(result.nearest),
        "refused": dict(result.refused),
        "enough": result.enough and {"devices": result.enough[0], **_plain(result.enough[1])},
    }


def _plain(found: Found) -> dict[str, object]:
    plan = plan_json(found.plan)
    return {"set": list(found.arguments), **{name: plan[name] for name in ("peak_bytes", "fits", "layout", "time")}}


def _layout(found: Found) -> str:
    choice, experts = found.choice, found.plan.layout.expert_sizes
    context = f"{choice.context} context x " if choice.context > 1 else ""
    sizes = f"{choice.tensor} tensor x {choice.pipeline} pipeline x {context}{choice.data} data"
    return f"{sizes}; {experts}" if experts else sizes


def _numbers(found: Found) -> list[str]:
    plan = found.plan
    texts = [f"{gib(plan.peak_bytes)} GiB; {verdict(plan)}", *(() if plan.time is None else time_lines(plan.time))]
    return [line for text in texts for line in indented(text, 4, WIDTH)]


def _arguments(found: Found, *others: str) -> list[str]:
    words = [*others, *(f"--set {argument}" for argument in found.arguments)] or ["the recipe as it is"]
    lines = [f"    {words[0]}"]
    for word in words[1:]:  # none of which is cut
        if len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return lines
