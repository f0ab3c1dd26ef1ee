"""Ranks that start, agree in each iteration, stop, save and report a hang by the real protocols.

They have no model, and the default process group is one that moves nothing, in place of the device's own: what is
counted is what the project adds to it. A rank is a thread with its own client of the store and its own groups of gloo.
"""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the group that moves nothing
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

from benchmarks.scale.launchers import RANKS
from pretrain.checkpoint.agreement import between_hosts, first_of, gathered
from pretrain.launch import rank0_broadcast
from pretrain.launch.rank0_broadcast import HOST, gathered_on_rank0, rank0_decides, tell_rank0
from pretrain.launch.world import World
from pretrain.plugins.collective_record import CalledCollective
from pretrain.report.hang.gathering import REPORT, Gathering
from pretrain.report.hang.position import SIZE, Position
from pretrain.report.hang.rank_state import RankProcess, own_state
from pretrain.training.stopping import Exchange

MINUTES = 60  # timeout of the groups
TURNS = 10  # iterations
NUMBERS = 7  # that the ranks of a training sum in each iteration
RECIPE = 6000  # bytes that a rank tells rank 0 at its start, as docs/several-nodes.md has it
SHARE = [("shard of a tensor", rank, 200 * "x") for rank in range(13)]
"""What a rank tells of a checkpoint: where it has written 13 tensors, some 200 bytes for each."""


_of_thread = threading.local()
rank0_broadcast._store = lambda: _of_thread.store  # which is that of the process otherwise
_install_threaded_pg()  # and so are the process groups
torch._C._distributed_c10d._set_thread_isolation_mode(True)


class _Votes:
    """Numbers of one rank in the exchange."""

    size = NUMBERS

    def __init__(self) -> None:
        self.vote, self.sum = 0.0, 0.0

    def own(self) -> list[float]:
        return [self.vote] * self.size

    def agreed(self, sums) -> None:
        self.sum = sums[0]


class Rank:
    """One rank."""

    ACTS = ("start", "exchange_groups", "exchange", "stop", "leave", "checkpoint_groups", "checkpoint", "hang_report")

    def __init__(self, place: int, number: int, port: int) -> None:
        self._place, self._number = place, number
        self._store = TCPStore(
            "127.0.0.1", port, number, is_master=place == 0, timeout=timedelta(minutes=MINUTES), wait_for_workers=True
        )
        _of_thread.store = self._store
        self._join("first")

    def _join(self, groups: str) -> None:
        dist.init_process_group(
            "fake", store=PrefixStore(groups, self._store), rank=self._place, world_size=self._number
        )

    def start(self) -> str:
        """Agree on the run directory and on the recipe."""
        place = {"rank": self._place, "world_size": self._number, "node_rank": self._place // RANKS}
        local = {"local_rank": self._place % RANKS, "local_world_size": RANKS}
        world = World(**place, **local, master_addr="127.0.0.1", master_port=0)
        rank0_decides(lambda: "runs/1", world)
        tell_rank0(HOST, f"node{self._place // RANKS}", world)
        tell_rank0("recipe", json.dumps("x" * RECIPE), world)

        def decide() -> str:
            told = gathered_on_rank0("recipe", world, timedelta(minutes=MINUTES))
            return str(len(set(told)))

        return rank0_decides(decide, world, about="the recipe")

    def exchange_groups(self) -> None:
        """Make the groups of the exchange."""
        self._votes = _Votes()
        self._exchange = Exchange(self._votes, timeout_minutes=MINUTES)

    def exchange(self) -> int:
        """Exchange numbers after each of `TURNS` iterations, which take no time."""
        for _ in range(TURNS):
            self._exchange.turn()
        return TURNS

    def stop(self) -> int:
        """Agree that one rank wants to stop; return the turns until all know it."""
        self._exchange.settle()
        self._votes.vote, self._votes.sum = float(self._place == self._number // 2), 0.0
        turns = 0
        while not self._votes.sum:
            self._exchange.turn()
            turns += 1
        self._exchange.settle()
        return turns

    def leave(self) -> None:
        """Leave these groups, so that those of the checkpoint can be counted by themselves."""
        del self._exchange
        dist.destroy_process_group()
        self._join("second")

    def checkpoint_groups(self) -> None:
        """Make the groups in which a checkpoint that is written beside the training is agreed on."""
        self._group = between_hosts("checkpoint", MINUTES)

    def checkpoint(self) -> int:
        """Agree that a checkpoint is complete, as its snapshot and its publication do; return the ranks' shares."""
        shares = gathered((SHARE, {}, None), self._group)
        first_of(None, self._group)
        first_of(None, self._group)
        return len(shares or ())

    def hang_report(self) -> dict[str, int]:
        """Report a hang that all ranks see at once, in files; return the bytes of the states and of the report."""
        folder = Path(tempfile.gettempdir()) / f"pretrain-scale-{self._store.port}"
        gathering = Gathering(folder, self._place, _processes(self._number))
        found: dict[str, int] = {}

        def published(text: str, _states) -> None:
            files = list(folder.glob("*.json"))
            found.update(files=len(files), state_bytes=sum(each.stat().st_size for each in files), text=len(text))

        gathering.ask()
        state = self._state()
        if not gathering.write_report(state, lambda _: "The run hangs.", 60.0 * MINUTES, published):
            gathering.wait_for_report(60.0 * MINUTES)
        return {**found, "report_bytes": (folder / REPORT).stat().st_size}

    def _state(self):
        """Return the state of a rank that waits for all of its replicas."""
        ranks = tuple(range(self._place % RANKS, self._number, RANKS))
        waits = CalledCollective(
            operation="all_reduce", library="nccl", group="data", ranks=ranks, number=3, called=0.0, pending=True
        )
        state = own_state(
            Position(bytearray(SIZE)),
            identity={"rank": self._place, "host": f"node{self._place // RANKS}", "pid": self._place, "layers": 80},
            seconds=900.0,
            since=0.0,
            called=[waits],
            groups={},
            neighbours=[],
        )
        return replace(state, waits_in=waits, stacks=state.stacks[:3])


@lru_cache
def _processes(number: int) -> dict[int, RankProcess]:
    """Return the processes of all ranks as one sees them that is on another node."""
    own = RankProcess.own(0)
    nodes = [f"node{rank // RANKS}" for rank in range(number)]
    return {rank: replace(own, rank=rank, host=node, place=node) for rank, node in enumerate(nodes)}
