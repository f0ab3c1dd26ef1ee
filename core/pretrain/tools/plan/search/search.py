"""Search for the fastest layouts that fit a number of devices."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.plan import make_plan
from pretrain.tools.plan.search.choices import Choices, set_arguments
from pretrain.tools.plan.search.estimates import estimated_seconds, layout_peak
from pretrain.tools.plan.search.trace_pieces import trace_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.search.choices import LayoutChoice
    from pretrain.tools.plan.search.trace_pieces import Pieces


SHOWN = 5
MOST_PLANS = 3
"""Full plans for each layout that is shown, after which the search gives up."""
MOST_TIMES = 16
"""Factor of the devices up to which a number that is enough is looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Layout that was planned in full.

    Attributes:
        choice: of the layout.
        arguments: values of `--set` that make it of the recipe; only what differs.
        plan: of the recipe with them.
    """

    choice: LayoutChoice
    arguments: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Result of a search.

    Attributes:
        device: with its figures.
        devices: their number.
        tried: legal layouts.
        fitting: those of them that fit; all, where the device's memory is not known. By the estimate of traced pieces,
            but for those that were planned.
        best: at most `SHOWN` of them, fastest first; each differs from the others in more than savings of memory.
        planned: number of layouts that were planned in full.
        given_up: number of layouts that fit by the estimate and were not planned, since none that was planned fits.
        nearest: the smallest layout, where none fits.
        refused: number of sizes that are not legal, by reason.
        enough: where nothing fits, the first of two, four, ... `MOST_TIMES` times as many devices for which some do,
            and its fastest layout; else None, as where ranks share the memory.
    """

    device: PlanDevice
    devices: int
    tried: int
    fitting: int
    best: Sequence[Found]
    planned: int
    given_up: int
    nearest: Found | None
    refused: Mapping[str, int]
    enough: tuple[int, Found] | None = None


class _Sized(NamedTuple):
    """A choice with its estimated peak in bytes."""

    peak: int
    choice: LayoutChoice


class _Search:
    """Estimates and plans layouts of one recipe; traces the pieces that the estimates need."""

    def __init__(self, recipe: Recipe, device: PlanDevice, vocab_size: int, say: Callable[[str], None]) -> None:
        self._recipe, self._device, self._vocab_size, self._say = recipe, device, vocab_size, say
        self._pieces: dict[tuple[int, bool], Pieces] = {}

    def choices(self, devices: int) -> Choices:
        return Choices(self._recipe, devices, self._device.figures.devices_per_node or devices)

    def sized(self, choices: Sequence[LayoutChoice]) -> list[_Sized]:
        """Estimate the peak of each choice."""
        keys = {(choice.tensor, choice.with_sequence) for choice in choices} - self._pieces.keys()
        if keys:
            sizes = ", ".join(map(str, sorted({tensor for tensor, _ in keys})))
            self._say(f"search: tracing a layer with tensor-parallel size {sizes}")
            self._pieces |= trace_pieces(self._recipe, self._device, self._vocab_size, keys)
        return [_Sized(layout_peak(self._recipe, self._device, each, self._of(each)), each) for each in choices]

    def fitting(self, sized: Sequence[_Sized]) -> list[_Sized]:
        """Return those that fit by the estimate."""
        memory = self._device.memory
        return [each for each in sized if memory is None or each.peak <= memory]

    def best(self, sized: Sequence[_Sized], shown: int = SHOWN) -> tuple[list[Found], list[Found]]:
        """Return choices that fit by full plans, fastest first, and those that do not.

        The fastest by the estimate are planned, and if none of them fits the smallest of each layout, smallest first.

        Args:
            sized: choices that fit by the estimate; planned `shown` at a time until some fit, `MOST_PLANS` times.
            shown: how many to return at most.
        """
        fastest = _first_of_each(sorted(sized, key=self._cost))[:shown]
        smallest = _first_of_each(sorted(sized, key=_peak))
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
        """Return the full plan of the choice that is the smallest by the estimate, which may be planned already."""
        choice = min(sized, key=_peak).choice
        found = next((each for each in planned if each.choice == choice), None)
        return found or self._planned(choice, "the smallest layout")

    def enough(self, devices: int) -> tuple[int, Found] | None:
        """Return the first of two, four, ... times as many devices for which a layout fits, and its fastest one."""
        factor = 2
        while factor <= MOST_TIMES and not self._device.is_shared:
            sized = self.sized(list(self.choices(devices * factor)))
            best, _ = self.best(self.fitting(sized), shown=1)
            if best:
                return devices * factor, best[0]
            factor *= 2
        return None

    def _of(self, choice: LayoutChoice) -> Pieces:
        return self._pieces[choice.tensor, choice.with_sequence]

    def _cost(self, sized: _Sized) -> tuple[float, int]:
        choice = sized.choice
        seconds = estimated_seconds(choice.recipe(self._recipe), self._device, choice, self._of(choice))
        return seconds.mean if seconds else 0.0, sized.peak

    def _planned(self, choice: LayoutChoice, which: str) -> Found:
        """Plan a choice in full, as the recipe that its arguments make."""
        devices = choice.tensor * choice.pipeline * choice.data
        self._say(f"search: planning {which} for {devices} devices in full")
        arguments = set_arguments(self._recipe, choice)
        recipe = make_recipe(self._recipe.model_dump(exclude_unset=True), arguments, self._recipe.source)
        plan = make_plan(recipe, self._device, devices=devices, vocab_size=self._vocab_size)
        return Found(choice=choice, arguments=arguments, plan=plan)


def search(
    recipe: Recipe,
    device: PlanDevice,
    devices: int,
    vocab_size: int,
    say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
) -> SearchResult:
    """Estimate all legal layouts from traced pieces, and plan the fastest of those that fit in full.

    Raises:
        PretrainError: an operation has no allowed kernel.
    """
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
    """Return the first choice of each layout and micro-batch."""
    first: dict[tuple[int, int, int, int], LayoutChoice] = {}
    for _, choice in sized:
        first.setdefault((choice.tensor, choice.pipeline, choice.data, choice.micro_batch), choice)
    return list(first.values())


def _peak(sized: _Sized) -> int:
    return sized.peak


MOST_REPLICAS = 64
"""Replicas up to which is looked."""


def enough_devices(
    recipe: Recipe,
    device: PlanDevice,
    vocab_size: int,
    say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
) -> int | None:
    """Return the least number of devices on which a recipe fits that does not fit on those of one replica.

    Made of full plans, of which it takes about six. The more replicas, the less each holds.

    Returns:
        None: it does not fit with up to `MOST_REPLICAS` replicas.

    Raises:
        PretrainError: as `make_plan`.
    """
    sizes = [size for size in range(2, MOST_REPLICAS + 1) if _is_legal(recipe, size * recipe.model_parallel_size)]

    def fits(size: int) -> bool:
        devices = size * recipe.model_parallel_size
        say(f"trying {devices} devices")
        return bool(make_plan(recipe, device, devices=devices, vocab_size=vocab_size).fits)

    if not sizes:
        return None
    replica = f"{recipe.model_parallel_size} device{'s' * (recipe.model_parallel_size > 1)}"
    say(f"it does not fit on {replica}; looking for the number that is enough")
    if not fits(sizes[-1]):
        return None
    return sizes[bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)] * recipe.model_parallel_size


def _is_legal(recipe: Recipe, devices: int) -> bool:
    try:
        lay_out(recipe, devices)
    except RecipeError:
        return False
    return True
