"""Communication between two ranks, on the backend's process group with the options that the plugin offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pretrain.conformance import examples
from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.ranks.rank_pair import RankPair

if TYPE_CHECKING:
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import CollectivesRequest

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv", "batched_send_recv"]


class TestCollectives:
    """Two processes, started by the kit."""

    operations = ("collectives",)

    @pytest.mark.parametrize("way", ["sync", "async"])
    @pytest.mark.parametrize("operation", OPERATIONS)
    @run_with([Case((examples.collectives(),))])
    def test_two_ranks(
        self, subject: Subject, kernel: Kernel, asked: CollectivesRequest, operation: str, way: str
    ) -> None:
        """The result is right after the call, or after its wait."""
        if operation.startswith("batched") and not subject.plugins.backend.point_to_point().batched:
            pytest.skip(f"{subject.plugins.label} says that it sends messages one by one (point_to_point)")
        assert subject.takes(kernel, asked)
        RankPair.of(subject).require(f"{operation} {way}", kernel)
