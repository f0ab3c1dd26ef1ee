"""Steps about the ranks' clocks, devices and links."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.ranks import stores
from pretrain.tools.doctor.ranks.steps.clock import answer_time, ask_time, judge_clocks
from pretrain.tools.doctor.ranks.steps.file_steps import parts
from pretrain.tools.doctor.ranks.steps.link_judgement import Place, judge_links
from pretrain.tools.doctor.ranks.steps.link_times import Links
from pretrain.tools.doctor.ranks.steps.own_step import all_have_devices
from pretrain.tools.doctor.ranks.steps.parallel_ranks import groups_of, schedule
from pretrain.tools.doctor.ranks.steps.rank_speed import judge_speed, measure_speed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Answers


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Clocks of the nodes against rank 0's."""

    board: Board
    name = "clocks"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002  it needs nothing
        """Return the first ranks of the nodes other than rank 0's; without any there is nothing to compare."""
        others = first_ranks(self.board)[1:]
        return {"ranks": others} if others else None

    def measure(self, orders: Any) -> Any:
        """Ask rank 0 for its time; on rank 0 answer."""
        rank = self.board.world.rank
        if rank not in {0, *orders["ranks"]}:
            return None
        self.board.doing("compare clocks with rank 0")
        store = stores.prefixed(self.name, stores.open_first(self.board.world, serves=False))
        if rank:
            return {"host": socket.gethostname(), "offset": ask_time(store, rank)}
        answer_time(store, orders["ranks"], self.board.doing)
        return None

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the clocks that are far off."""
        return judge_clocks(parts(answers))


@dataclass(frozen=True, slots=True)
class SpeedStep:
    """A matrix product on every rank at once."""

    board: Board
    device: torch.device | None
    dtype: torch.dtype
    name = "rank speed"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Leave it out unless every rank has its device."""
        return {} if all_have_devices(known) else None

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Measure this rank's device."""
        assert self.device is not None  # noqa: S101  every rank has said that it has one
        return measure_speed(self.device, self.dtype, self.board.doing)

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the slow ranks."""
        return judge_speed(answers)


@dataclass(frozen=True, slots=True)
class LinkStep:
    """Collectives of the recipe's groups, and messages between pairs."""

    recipe: Recipe | None
    plugins: Plugins | None
    board: Board
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
        links = Links(
            rank=world.rank,
            world_size=world.world_size,
            device=self.device,
            process_group=self.plugins.backend.process_group,
            store=stores.prefixed(self.name, stores.open_first(world, serves=False)),
            doing=self.board.doing,
            sizes=self.sizes,
        )
        return links.measure(groups_of(self.recipe, world.world_size), orders["rounds"])

    def judge(self, answers: Answers) -> list[Finding]:
        """Compare with each other and with the datasheet."""
        assert self.plugins is not None  # noqa: S101  every rank has a device
        world_size = self.board.world.world_size
        marks = self.board.marks(range(world_size))  # of the ranks without an answer too: others measured with them
        places = {rank: Place(mark.node, mark.host) for rank, mark in marks.items()}
        kinds = groups_of(self.recipe, world_size)
        return judge_links(answers, kinds, places, self.plugins.backend.figures())


def nodes_of(board: Board) -> list[int]:
    """Return the node of every rank, all of which have come."""
    marks = board.marks(range(board.world.world_size))
    return [marks[rank].node for rank in sorted(marks)]


def first_ranks(board: Board) -> list[int]:
    """Return the first rank of every node."""
    nodes = nodes_of(board)
    return [nodes.index(node) for node in dict.fromkeys(nodes)]
