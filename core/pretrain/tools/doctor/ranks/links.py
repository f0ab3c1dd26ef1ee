"""Judges the links between ranks: bandwidth, latency, the slowest pair."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.ranks.link_times import ALL_REDUCE, LinkTimer, groups_of, schedule
from pretrain.tools.doctor.ranks.node_steps import nodes_of
from pretrain.tools.doctor.ranks.own_steps import orders_with_devices
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep
from pretrain.tools.doctor.ranks.store_client import open_first, prefixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.link_times import Groups
    from pretrain.tools.doctor.ranks.status_board import Mark, StatusBoard
    from pretrain.tools.doctor.ranks.step_sequence import Answers

    Pairs = Mapping[tuple[int, int], Mapping[str, float]]

_SLOWER = 2.0
_LEAST_SHARE, _LARGE = 0.4, 16 << 20
"""Share of the datasheet's bandwidth below which a collective is looked at; bytes from which it can be expected:
smaller ones take as long as their latency."""
_REMEDY = (
    "look at cabling and topology, at the interface that the library of the collectives has chosen (its log says), and "
    "at variables that turn a path off"
)


def link_step(
    recipe: Recipe | None,
    plugins: Plugins | None,
    board: StatusBoard,
    device: torch.device | None,
    sizes: Sequence[int],
) -> ExaminationStep:
    """Collectives of the recipe's groups, and messages between pairs."""
    name, world = "links", board.world

    def orders(known: Mapping[str, Answers]) -> Any:
        return None if orders_with_devices(known) is None else {"rounds": schedule(nodes_of(board))}

    def measure(orders: Any) -> Any:
        assert device is not None and plugins is not None  # noqa: PT018, S101  every rank has said so
        links = LinkTimer(
            rank=world.rank,
            world_size=world.world_size,
            device=device,
            process_group=plugins.backend.process_group,
            store=prefixed(name, open_first(world, serves=False)),
            doing=board.doing,
            sizes=sizes,
        )
        return links.measure(groups_of(recipe, world.world_size), orders["rounds"])

    def judge(answers: Answers) -> list[Finding]:
        assert plugins is not None  # noqa: S101  every rank has a device
        marks = board.marks(range(world.world_size))  # of the ranks without an answer too: others measured with them
        return judge_links(answers, groups_of(recipe, world.world_size), marks, plugins.backend.figures())

    return ExaminationStep(name=name, orders=orders, measure=measure, judge=judge, collective=True)


def judge_links(
    times: Mapping[int, Mapping[str, Any]], kinds: Mapping[str, Groups], places: Mapping[int, Mark], figures: Figures
) -> list[Finding]:
    """Return the findings about the times of `LinkTimer.measure` by rank; ranks without a place are left out."""
    if not times:
        return []
    found = list(_wrong_results(times))
    for kind, groups in kinds.items():
        for collective in next(iter(times.values()))["collectives"][kind]:
            measured = {ranks: next((rank for rank in ranks if rank in times), None) for ranks in groups}
            seconds = {
                ranks: times[rank]["collectives"][kind][collective]
                for ranks, rank in measured.items()
                if rank is not None and places.keys() >= set(ranks)
            }
            if seconds:
                found.append(_judge_collective(collective, kind, seconds, places, figures))
    pairs = {(rank, int(other)): of for rank, each in times.items() for other, of in each["pairs"].items()}
    pairs = {pair: of for pair, of in pairs.items() if places.keys() >= set(pair)}
    inside = {pair: of for pair, of in pairs.items() if places[pair[0]].node == places[pair[1]].node}
    across = {pair: of for pair, of in pairs.items() if pair not in inside}
    return [*found, *_judge_pairs("inside a node", inside, places), *_judge_pairs("between nodes", across, places)]


def bandwidth(collective: str, members: int, size: int, seconds: float) -> float:
    """Return the bytes/s that every rank sends, by the counts of nccl-tests (doc/PERFORMANCE.md, bus bandwidth)."""
    parts = 2 if collective == ALL_REDUCE else 1
    return parts * (members - 1) / members * size / seconds


def _judge_collective(
    collective: str,
    kind: str,
    seconds: Mapping[tuple[int, ...], Mapping[str, float]],
    places: Mapping[int, Mark],
    figures: Figures,
) -> Finding:
    size = min(max(int(each) for each in of) for of in seconds.values())
    least = min(int(each) for each in next(iter(seconds.values())))
    slowest = max(seconds, key=lambda ranks: seconds[ranks][str(size)])
    usual = median(of[str(size)] for of in seconds.values())
    rate = bandwidth(collective, len(slowest), size, seconds[slowest][str(size)])
    within = len({places[rank].node for rank in slowest}) == 1
    stated = figures.link_bandwidth if within else figures.node_bandwidth
    of_stated = f" of {stated / 1e9:.0f} stated" if stated else ""
    latency = max(of[str(least)] for of in seconds.values())
    named = f"{len(seconds)} {kind} of {len(slowest)}, slowest {rank_names(slowest)}" if len(seconds) > 1 else kind
    text = f"{named}: {rate / 1e9:.2f}{of_stated} GB/s at {_bytes(size)}, {1e6 * latency:.0f} us at {_bytes(least)}"
    if seconds[slowest][str(size)] > _SLOWER * usual:
        text += f"; over {_SLOWER:g} times the median of the groups"
    elif not (stated and size >= _LARGE and rate < _LEAST_SHARE * stated):
        return Finding.ok(collective, text)
    return Finding.look(collective, text, _REMEDY, slowest)


def _judge_pairs(where: str, pairs: Pairs, places: Mapping[int, Mark]) -> list[Finding]:
    if not pairs:
        return []
    least, size = (choose(map(int, next(iter(pairs.values())))) for choose in (min, max))
    slowest = max(pairs, key=lambda pair: pairs[pair][str(size)])
    seconds, usual = pairs[slowest][str(size)], median(of[str(size)] for of in pairs.values())
    latency = max(of[str(least)] for of in pairs.values())
    names = " and ".join(f"{rank} (host {places[rank].host})" for rank in slowest)
    text = (
        f"{where}, {len(pairs)} pair{'s' if len(pairs) > 1 else ''}: {size / usual / 1e9:.2f} GB/s at {_bytes(size)}, "
        f"{1e6 * latency:.0f} us at {_bytes(least)}; slowest ranks {names}, {size / seconds / 1e9:.2f} GB/s"
    )
    is_slow = seconds > _SLOWER * usual
    return [Finding.look("point-to-point", text, _REMEDY, slowest) if is_slow else Finding.ok("point-to-point", text)]


def _wrong_results(times: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for each in times.values() for name in each["unequal"]):
        ranks = [rank for rank, each in times.items() if name in each["unequal"]]
        remedy = "do not train: look at these ranks' devices and links, and at the library's version"
        yield Finding.wrong(name.partition(",")[0], f"{name}: a wrong result on {rank_names(ranks)}", remedy, ranks)


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
