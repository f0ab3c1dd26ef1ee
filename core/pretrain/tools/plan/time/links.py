"""Links between ranks: bandwidth of a group by where its ranks are, and the time of a message."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.plugins.backend import Figures
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.costs import Message

_ROUNDS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""Rounds of n - 1 sends of an n-th of the tensor in a ring of n (Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002); others pass the whole tensor on."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links of a layout's ranks, which are numbered tensor first, then data, then pipeline, and fill nodes in order.

    Attributes:
        figures: of the device.
        layout: of the ranks.
        efficiency: share of the bandwidth that is reached.
    """

    figures: Figures
    layout: Layout
    efficiency: float

    def seconds(self, messages: Mapping[Message, float]) -> float:
        """Return the time of messages, one after another; those over links of unknown speed take none."""
        return math.fsum(self._of_one(message) * count for message, count in messages.items())

    def unknown(self, messages: Iterable[Message]) -> list[str]:
        """Return the links of unknown speed that messages pass: "inside a node", "between nodes"."""
        unknown = [message for message in messages if self._bandwidth(message) is None]
        inside = {self._ranks_in_node(message) >= message.size for message in unknown}
        return [name for is_inside, name in ((True, "inside a node"), (False, "between nodes")) if is_inside in inside]

    def _of_one(self, message: Message) -> float:
        bandwidth = self._bandwidth(message)
        if bandwidth is None or message.kind == "send":  # the other side's "receive" is the same message
            return 0.0
        return _traffic(message) / (bandwidth * self.efficiency)

    def _bandwidth(self, message: Message) -> float | None:
        """Return the bytes/s of one rank in a ring over the group.

        Every device has a port to other nodes: a group with several ranks in a node uses the ports of all of them.
        """
        ranks = self._ranks_in_node(message)
        link, port = self.figures.link_bandwidth, self.figures.node_bandwidth
        if ranks >= message.size:
            return link
        if port is None:
            return None
        return port * ranks if link is None else min(port * ranks, link)

    def _ranks_in_node(self, message: Message) -> int:
        """Return the ranks of a group that are in one node."""
        node = self.figures.devices_per_node or self.layout.world_size
        if self.layout.world_size <= node:
            return message.size
        tensor, data = self.layout.tensor_model_parallel_size, self.layout.data_parallel_size
        if message.group == "tensor":
            return min(tensor, node)
        if message.group == "data":
            return max(1, min(data, node // tensor))
        return 1


def _traffic(message: Message) -> float:
    """Return the bytes that a rank sends."""
    rounds = _ROUNDS.get(message.kind)
    return message.moved * (1.0 if rounds is None else rounds * (message.size - 1) / message.size)
