"""Times collectives and messages between ranks by size, and judges them: bandwidth, latency, the slowest pair."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.device_speed import synchronize
from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.ranks.status_board import open_first, prefixed
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep
from pretrain.tools.doctor.ranks.steps import nodes_of, orders_with_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import Mark, StatusBoard
    from pretrain.tools.doctor.ranks.step_sequence import Answers

    Seconds = Mapping[tuple[int, ...], Mapping[str, float]]  # of a group or pair of ranks, by bytes

_SLOWER = 2.0
_LEAST_SHARE, _LARGE = 0.4, 16 << 20
"""Share of the datasheet's bandwidth below which a collective is looked at; bytes from which it can be expected:
smaller ones take as long as their latency."""
_REMEDY = (
    "check the cabling and topology, the network interface that the communication library chose (see its log), and "
    "environment variables that disable a path"
)


def link_step(
    recipe: Recipe,
    plugins: Plugins | None,
    board: StatusBoard,
    device: torch.device | None,
    sizes: Sequence[int],
) -> ExaminationStep:
    """Collectives of the recipe's groups, and messages between pairs."""
    groups = groups_of(recipe, board.world.world_size)

    def orders(known: Mapping[str, Answers]) -> Any:
        return None if orders_with_devices(known) is None else {"rounds": schedule(nodes_of(board))}

    def measure(orders: Any) -> Any:
        assert device is not None and plugins is not None  # noqa: PT018, S101  every rank has said so
        return LinkTimer(board, device, plugins.backend.process_group, sizes).measure(groups, orders["rounds"])

    def judge(answers: Answers) -> list[Finding]:
        assert plugins is not None  # noqa: S101  every rank has a device
        marks = board.marks(range(board.world.world_size))  # also of ranks without an answer: others measured with them
        return judge_links(answers, groups, marks, plugins.backend.figures())

    return ExaminationStep(name="links", orders=orders, measure=measure, judge=judge, collective=True)


def judge_links(
    times: Mapping[int, Mapping[str, Any]], kinds: Mapping[str, Groups], places: Mapping[int, Mark], figures: Figures
) -> list[Finding]:
    """Judge the times of `LinkTimer.measure` by rank; ranks without a place are left out."""
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
    pairs: dict[tuple[int, ...], Any] = {
        (rank, int(other)): of for rank, each in times.items() for other, of in each["pairs"].items()
    }
    pairs = {pair: of for pair, of in pairs.items() if places.keys() >= set(pair)}
    inside = {pair: of for pair, of in pairs.items() if places[pair[0]].node == places[pair[1]].node}
    across = {pair: of for pair, of in pairs.items() if pair not in inside}
    return [*found, *_judge_pairs("inside a node", inside, places), *_judge_pairs("between nodes", across, places)]


def bandwidth(collective: str, members: int, size: int, seconds: float) -> float:
    """Return the bytes/s that every rank sends, by the counts of nccl-tests (doc/PERFORMANCE.md, bus bandwidth)."""
    parts = 2 if collective == ALL_REDUCE else 1
    return parts * (members - 1) / members * size / seconds


def _judge_collective(
    collective: str, kind: str, seconds: Seconds, places: Mapping[int, Mark], figures: Figures
) -> Finding:
    size = min(max(int(each) for each in of) for of in seconds.values())
    least = min(int(each) for each in next(iter(seconds.values())))
    slowest = max(seconds, key=lambda ranks: seconds[ranks][str(size)])
    usual = median(of[str(size)] for of in seconds.values())
    rate = bandwidth(collective, len(slowest), size, seconds[slowest][str(size)])
    within = len({places[rank].node for rank in slowest}) == 1
    stated = figures.link_bandwidth if within else figures.node_bandwidth
    of_stated = f" (datasheet {stated / 1e9:.0f} GB/s)" if stated else ""
    latency = max(of[str(least)] for of in seconds.values())
    named = f"{len(seconds)} {kind} of {len(slowest)}, slowest {rank_names(slowest)}" if len(seconds) > 1 else kind
    text = f"{named}: {rate / 1e9:.2f} GB/s at {_bytes(size)}{of_stated}, {1e6 * latency:.0f} us at {_bytes(least)}"
    if seconds[slowest][str(size)] > _SLOWER * usual:
        text += f"; the slowest takes over {_SLOWER:g} times the median"
    elif not (stated and size >= _LARGE and rate < _LEAST_SHARE * stated):
        return Finding.ok(collective, text)
    return Finding.look(collective, text, _REMEDY, slowest)


def _judge_pairs(where: str, pairs: Seconds, places: Mapping[int, Mark]) -> list[Finding]:
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
        remedy = "do not train: check these ranks' devices and links, and the communication library's version"
        yield Finding.wrong(name.partition(",")[0], f"{name}: a wrong result on {rank_names(ranks)}", remedy, ranks)


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = "all-reduce", "all-gather", "all-to-all"
EXPERTS = "expert groups"  # whose ranks exchange tokens by all-to-all, and nothing else
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
"""Bytes of the whole tensor: what an all-reduce sums, what an all-gather returns, what a rank sends in an
all-to-all."""
PAIR_SIZES = (4 << 10, 8 << 20)
_SHARE_OF_TIME, _MOST_TIME = 0.2, 0.5
"""Seconds for the repetitions of one size; the longest that one is expected to take, beyond which it is left out."""
_REPETITIONS = 20
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the name since torch 2.13, and before
_TIMEOUT = timedelta(minutes=15)
"""Of the process group: longer than the board's, so that the library does not abort the process before the report."""
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LinkTimer:
    """Times the links of one rank."""

    board: StatusBoard
    device: torch.device
    process_group: str  # torch.distributed's backend
    sizes: Sequence[int]  # bytes of the collectives, growing

    def measure(self, kinds: Mapping[str, Groups], rounds: Sequence[Sequence[tuple[int, int]]]) -> dict[str, Any]:
        """Return this rank's times; every rank calls it with the same arguments."""
        # Groups of one kind, and pairs of one round, are measured at the same time. "collectives": kind -> collective
        # -> bytes -> seconds; "pairs": the other rank -> bytes -> seconds of one way, on the lower rank of a pair;
        # "unequal": collectives that gave a wrong result.
        found: dict[str, Any] = {"collectives": {}, "pairs": {}, "unequal": []}
        rank, world_size = self.board.world.rank, self.board.world.world_size
        self.board.doing(f"join the process group of {world_size} ranks ({self.process_group})")
        store = prefixed("links", open_first(self.board.world, serves=False))
        dist.init_process_group(self.process_group, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
        for kind, groups in kinds.items():
            group, members = self._group(kind, groups)
            timed = {ALL_REDUCE: self._all_reduce, ALL_GATHER: self._all_gather}
            if kind == EXPERTS:
                timed, wrong_results = {ALL_TO_ALL: self._all_to_all}, self._wrong_exchange
            else:
                wrong_results = self._wrong_results
            found["unequal"] += wrong_results(kind, group, len(members))
            found["collectives"][kind] = {
                name: self._times(f"{name}, {kind}", group, make) for name, make in timed.items()
            }
        for pair in (pair for pairs in rounds for pair in pairs if rank in pair):
            other = pair[0] + pair[1] - rank
            times = {str(size): self._exchange(other, size) for size in PAIR_SIZES}
            found["pairs"] |= {str(other): times} if rank < other else {}
        self.board.doing("leave the process group")
        dist.destroy_process_group()  # not after an error: it would wait for the others
        return found

    def _group(self, kind: str, groups: Groups) -> tuple[Any, tuple[int, ...]]:
        """Make the groups of a kind, which every rank does for all of them; return this rank's."""
        self.board.doing(f"make the {kind}")
        made = [dist.new_group(list(ranks), timeout=_TIMEOUT) for ranks in groups]
        place = next(place for place, ranks in enumerate(groups) if self.board.world.rank in ranks)
        return made[place], groups[place]

    def _wrong_results(self, kind: str, group: Any, members: int) -> list[str]:
        self.board.doing(f"{ALL_REDUCE} and {ALL_GATHER} of numbers, {kind}")
        place = dist.get_rank(group)
        own = torch.full((16,), float(place + 1), device=self.device)
        gathered = torch.empty(16 * members, device=self.device)
        _all_gather(gathered, own, group=group)
        expected = torch.arange(1, members + 1, dtype=torch.float32).repeat_interleave(16)
        wrong = [] if torch.equal(gathered.cpu(), expected) else [f"{ALL_GATHER}, {kind}"]
        dist.all_reduce(own, group=group)
        whole = torch.full((16,), members * (members + 1) / 2)
        return wrong if torch.equal(own.cpu(), whole) else [*wrong, f"{ALL_REDUCE}, {kind}"]

    def _wrong_exchange(self, kind: str, group: Any, members: int) -> list[str]:
        """Send every rank another count, as tokens go to experts: place + 1 numbers to each place."""
        self.board.doing(f"{ALL_TO_ALL} of numbers, {kind}")
        place, counts = dist.get_rank(group), list(range(1, members + 1))
        own = torch.full((sum(counts),), float(place), device=self.device)
        arrived = torch.empty(members * (place + 1), device=self.device)
        dist.all_to_all_single(arrived, own, [place + 1] * members, counts, group=group)
        expected = torch.arange(members, dtype=torch.float32).repeat_interleave(place + 1)
        return [] if torch.equal(arrived.cpu(), expected) else [f"{ALL_TO_ALL}, {kind}"]

    def _times(self, name: str, group: Any, make: Callable[[Any, int], Callable[[], Any]]) -> dict[str, float]:
        """Return seconds by size, the same on all ranks of the group; slow links end it at a smaller size."""
        found: dict[str, float] = {}
        expected = _SHARE_OF_TIME / _REPETITIONS
        for size, next_size in zip(self.sizes, [*self.sizes[1:], 0], strict=True):
            self.board.doing(f"{name}, {size >> 10} KiB")
            call = make(group, size)
            call()  # the first makes connections
            repetitions = max(2, min(_REPETITIONS, int(_SHARE_OF_TIME / expected)))
            # The largest value of the group, so that all its ranks go on alike.
            slowest = torch.tensor([self._seconds(call, repetitions)], device=self.device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
            found[str(size)] = seconds = slowest.item()
            expected = seconds * next_size / size
            if expected > _MOST_TIME:
                break
        return found

    def _all_reduce(self, group: Any, size: int) -> Callable[[], Any]:
        tensor = torch.zeros(size // 4, device=self.device)
        return lambda: dist.all_reduce(tensor, group=group)

    def _all_gather(self, group: Any, size: int) -> Callable[[], Any]:
        members = dist.get_world_size(group)
        part = torch.zeros(max(1, size // 4 // members), device=self.device)
        whole = torch.empty(part.numel() * members, device=self.device)
        return lambda: _all_gather(whole, part, group=group)

    def _all_to_all(self, group: Any, size: int) -> Callable[[], Any]:
        members = dist.get_world_size(group)
        sent = torch.zeros(max(1, size // 4 // members) * members, device=self.device)
        arrived = torch.empty_like(sent)
        return lambda: dist.all_to_all_single(arrived, sent, group=group)

    def _exchange(self, other: int, size: int) -> float:
        """Return the seconds that a message takes to the other rank: half of there and back."""
        rank = self.board.world.rank
        self.board.doing(f"messages of {size >> 10} KiB to and from rank {other}")
        tensor = torch.zeros(size // 4, device=self.device)

        def there_and_back() -> None:
            for sends in (rank < other, rank > other):
                (dist.send if sends else dist.recv)(tensor, other)

        there_and_back()  # the first makes the connection
        return min(self._seconds(there_and_back, 3) for _ in range(3)) / 2

    def _seconds(self, call: Callable[[], Any], repetitions: int) -> float:
        synchronize(self.device)
        begun = time.perf_counter()
        for _ in range(repetitions):
            call()
        synchronize(self.device)
        return (time.perf_counter() - begun) / repetitions


def groups_of(recipe: Recipe, world_size: int) -> Mapping[str, Groups]:
    """Return the groups by kind: all ranks, tensor, context, data, and of experts; without those of one rank."""
    # Ranks are numbered as megatron-core does (parallel_state.initialize_model_parallel, order tp-cp-ep-dp-pp): tensor
    # ranks are neighbours, then those that share sequences, then data-parallel ones, then stages; neighbours share
    # experts. "data groups" have equal weights: data x context. A kind that is all ranks again is left out too, where
    # the same collectives would be timed.
    parallel = recipe.parallel
    tensor, stages = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    experts = 1
    if recipe.model.num_experts is not None:
        experts = parallel.expert_model_parallel_size * parallel.expert_tensor_parallel_size
    of_stage, sharing = world_size // stages, tensor * parallel.context_parallel_size
    kinds: dict[str, Groups] = {
        "all ranks": (tuple(range(world_size)),),
        "tensor groups": _neighbours(tensor, world_size),
        "context groups": tuple(
            tuple(range(first + place, first + sharing, tensor))
            for first in range(0, world_size, sharing)
            for place in range(tensor)
        ),
        "data groups": tuple(
            tuple(range(stage * of_stage + place, (stage + 1) * of_stage, tensor))
            for stage in range(stages)
            for place in range(tensor)
        ),
        EXPERTS: _neighbours(experts, world_size),
    }
    several = {kind: groups for kind, groups in kinds.items() if len(groups[0]) > 1}
    return {kind: groups for kind, groups in several.items() if kind in {"all ranks", EXPERTS} or len(groups) > 1}


def _neighbours(size: int, world_size: int) -> Groups:
    return tuple(tuple(range(first, first + size)) for first in range(0, world_size, size))


def rounds_of_pairs(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds in which every member meets at most one other; over all rounds every pair meets once."""
    # The circle method of round-robin tournaments: one member stays, the others move on by a place a round.
    circle: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    half = len(circle) // 2
    rounds = []
    for _ in range(len(circle) - 1):
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in rounds if pairs]


def neighbour_rounds(members: Sequence[int], distance: int = 1) -> list[list[tuple[int, int]]]:
    """Return rounds in which every member meets the one `distance` places on, in a ring."""
    count = len(members)
    waiting = [(members[place], members[(place + distance) % count]) for place in range(count)]
    rounds: list[list[tuple[int, int]]] = []
    for pair in dict.fromkeys((min(pair), max(pair)) for pair in waiting):
        free = next((pairs for pairs in rounds if not {rank for met in pairs for rank in met} & set(pair)), None)
        if free is None:
            rounds.append([pair])
        else:
            free.append(pair)
    return rounds


def schedule(nodes: Sequence[int], most: int = 16) -> list[list[tuple[int, int]]]:
    """Return the rounds of pairs whose link is measured."""
    # With up to `most` ranks every pair; with more, neighbours in the ring of all ranks, and of the first ranks of the
    # nodes every pair, or with more than `most` nodes those 1, 2, 4, ... nodes apart.
    ranks = range(len(nodes))
    if len(nodes) <= most:
        return rounds_of_pairs(ranks)
    first = [next(rank for rank in ranks if nodes[rank] == node) for node in dict.fromkeys(nodes)]
    if len(first) <= most:
        return neighbour_rounds(ranks) + rounds_of_pairs(first)
    distances = [1 << power for power in range((len(first) // 2).bit_length())]
    return neighbour_rounds(ranks) + [pairs for each in distances for pairs in neighbour_rounds(first, each)]
