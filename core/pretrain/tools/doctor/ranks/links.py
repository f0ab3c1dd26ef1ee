"""Judges the links between ranks: bandwidth, latency, the slowest pair."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.clocks import nodes_of
from pretrain.tools.doctor.ranks.link_times import ALL_REDUCE, LinkTimer, groups_of, schedule
from pretrain.tools.doctor.ranks.own_steps import all_have_devices
from pretrain.tools.doctor.ranks.step import ExaminationStep
from pretrain.tools.doctor.ranks.store_client import open_first, prefixed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.link_times import Groups
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers


_SLOWER = 2.0
_LEAST_SHARE, _LARGE = 0.4, 16 << 20
"""Share of the datasheet's bandwidth below which a collective is looked at; bytes from which it can be expected:
smaller ones take as long as their latency."""
_REMEDY = (
    "look at cabling and topology, at the interface that the library of the collectives has chosen (its log says), and "
    "at variables that turn a path off"
)


@dataclass(frozen=True, slots=True)
class RankHost:
    """Place of a rank.

    Attributes:
        node: its number.
        host: its name.
    """

    node: int
    host: str


def judge_links(
    times: Mapping[int, Mapping[str, Any]],
    kinds: Mapping[str, Groups],
    places: Mapping[int, RankHost],
    figures: Figures,
) -> list[Finding]:
    """Return the findings about collectives and pairs.

    Args:
        times: what `LinkTimer.measure` returned, by rank.
        kinds: groups of ranks by their kind.
        places: of all ranks that are known; what concerns others is left out.
        figures: of the device's datasheet.
    """
    if not times:
        return []
    found = [_unequal(name, ranks) for name, ranks in _unequal_results(times).items()]
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
    found += _judge_pairs("inside a node", inside, places)
    return found + _judge_pairs("between nodes", across, places)


def bandwidth(collective: str, members: int, size: int, seconds: float) -> float:
    """Return the bytes/s that every rank sends, by the counts of nccl-tests (doc/PERFORMANCE.md, bus bandwidth).

    Args:
        collective: all-reduce or all-gather.
        members: ranks of the group.
        size: bytes of the whole tensor.
        seconds: that it took.
    """
    parts = 2 if collective == ALL_REDUCE else 1
    return parts * (members - 1) / members * size / seconds


def _judge_collective(
    collective: str,
    kind: str,
    seconds: Mapping[tuple[int, ...], Mapping[str, float]],
    places: Mapping[int, RankHost],
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
        return Finding(check=collective, verdict=Verdict.OK, text=text)
    return Finding(check=collective, verdict=Verdict.LOOK, text=text, remedy=_REMEDY, ranks=slowest)


def _judge_pairs(
    where: str, pairs: Mapping[tuple[int, int], Mapping[str, float]], places: Mapping[int, RankHost]
) -> list[Finding]:
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
    if seconds <= _SLOWER * usual:
        return [Finding(check="point-to-point", verdict=Verdict.OK, text=text)]
    return [Finding(check="point-to-point", verdict=Verdict.LOOK, text=text, remedy=_REMEDY, ranks=slowest)]


def _unequal_results(times: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    names = dict.fromkeys(name for each in times.values() for name in each["unequal"])
    return {name: [rank for rank, each in times.items() if name in each["unequal"]] for name in names}


def _unequal(name: str, ranks: Sequence[int]) -> Finding:
    return Finding(
        check=name.partition(",")[0],
        verdict=Verdict.WRONG,
        text=f"{name}: a wrong result on {rank_names(ranks)}",
        remedy="do not train: look at these ranks' devices and links, and at the library's version",
        ranks=tuple(ranks),
    )


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


@dataclass(frozen=True, slots=True)
class LinkStep(ExaminationStep):
    """Collectives of the recipe's groups, and messages between pairs."""

    recipe: Recipe | None
    plugins: Plugins | None
    board: StatusBoard
    device: torch.device | None
    sizes: Sequence[int]
    name = "links"
    collective = True

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Return the rounds of pairs; leave it out unless every rank has its device."""
        if not all_have_devices(known):
            return None
        return {"rounds": schedule(nodes_of(self.board))}

    def measure(self, orders: Any) -> Any:
        """Measure this rank's links."""
        assert self.device is not None and self.plugins is not None  # noqa: PT018, S101  every rank has said so
        world = self.board.world
        links = LinkTimer(
            rank=world.rank,
            world_size=world.world_size,
            device=self.device,
            process_group=self.plugins.backend.process_group,
            store=prefixed(self.name, open_first(world, serves=False)),
            doing=self.board.doing,
            sizes=self.sizes,
        )
        return links.measure(groups_of(self.recipe, world.world_size), orders["rounds"])

    def judge(self, answers: Answers) -> list[Finding]:
        """Compare with each other and with the datasheet."""
        assert self.plugins is not None  # noqa: S101  every rank has a device
        world_size = self.board.world.world_size
        marks = self.board.marks(range(world_size))  # of the ranks without an answer too: others measured with them
        places = {rank: RankHost(mark.node, mark.host) for rank, mark in marks.items()}
        kinds = groups_of(self.recipe, world_size)
        return judge_links(answers, kinds, places, self.plugins.backend.figures())
