"""Steps about the ranks' clocks, devices and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.ranks.steps.clock import nodes_of
from pretrain.tools.doctor.ranks.steps.link_judgement import Place, judge_links
from pretrain.tools.doctor.ranks.steps.link_times import Links
from pretrain.tools.doctor.ranks.steps.own_step import all_have_devices
from pretrain.tools.doctor.ranks.steps.parallel_ranks import groups_of, schedule
from pretrain.tools.doctor.ranks.stores import open_first, prefixed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Answers


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
        places = {rank: Place(mark.node, mark.host) for rank, mark in marks.items()}
        kinds = groups_of(self.recipe, world_size)
        return judge_links(answers, kinds, places, self.plugins.backend.figures())
