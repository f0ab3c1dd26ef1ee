"""Agreement of all ranks on an error, an answer or a few numbers.

A rank that fails, or that sees other files, would otherwise leave the others waiting in their next collective.

What all ranks agree on goes through a tree of small process groups, and the device's own group is the only one of more
than `FAN_OUT` ranks. A gloo group connects all of its ranks with one another, and its addresses go through the store of
rank 0: a group of the world would need as many sockets on each rank as there are ranks.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from pretrain.errors import PretrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor


T = TypeVar("T")


@contextmanager
def quiet_gloo() -> Iterator[None]:
    """Hide the line that gloo of torch 2.9 and 2.10 prints for each process group made in this block.

    It would stand among results that others read from standard output. For the main thread.
    """
    if torch.__version__ >= TorchVersion("2.11"):
        yield
        return
    sys.stdout.flush()
    own, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
        os.close(nothing)


FAN_OUT = 32
"""Most ranks in a group of a tree. A world of so many has one group."""


class Pending(Protocol):
    """A reduction that has begun."""

    def wait(self) -> object:
        """Wait until the result is there; raise what has gone wrong."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Process groups of at most `FAN_OUT` ranks that connect all ranks: blocks of ranks, their first ranks, and so on.

    All ranks call its methods in the same order, from one thread at a time. It needs one group of each level, so its
    connections grow with the logarithm of the world. When a rank has ended, those that share a group with it raise an
    error; the others do when these have ended.
    """

    groups: tuple[dist.ProcessGroup, ...] = ()  # in which this rank is, that of its block first; none: it is alone
    below: tuple[dist.ProcessGroup, ...] = ()  # those among them that do not reach to all blocks

    @classmethod
    def between_hosts(cls, description: str, timeout_minutes: int, fan_out: int | None = None) -> Tree:
        """Make the groups, which need no device, with this description; collective."""
        rank, timeout = dist.get_rank(), timedelta(minutes=timeout_minutes)
        of_levels = levels(dist.get_world_size(), fan_out or FAN_OUT)
        groups: list[dist.ProcessGroup] = []
        below: list[dist.ProcessGroup] = []
        # Every rank names every group: torch numbers them, and with `use_local_synchronization` only a rank's own, of
        # which the first ranks have more. Those of others cost microseconds. The ranks of a group are connected at
        # once: gloo that connects them when it is used waits for minutes, or forever, for one that has died before
        # (pytorch/gloo#520).
        with quiet_gloo():
            for number, level in enumerate(of_levels, start=1):
                for ranks in level:
                    group = dist.new_group(list(ranks), backend="gloo", group_desc=description, timeout=timeout)
                    if rank in ranks:
                        groups.append(group)
                        below += [group] if number < len(of_levels) else []
        return cls(tuple(groups), tuple(below))

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank."""
        return not self.groups

    def begin(self, numbers: Tensor, op: Any = dist.ReduceOp.SUM) -> Pending:
        """Begin to replace the numbers by those of all ranks, reduced, and go on; waited for before the next is begun.

        The result is the same on all ranks. It does not depend on the order if sums of the numbers are exact.
        """
        if self.below:
            return _Thread(partial(self.reduce, numbers, op))
        work: Pending = dist.all_reduce(numbers, op=op, group=self.groups[0], async_op=True)
        return work

    def reduce(self, numbers: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """Replace the numbers by those of all ranks, reduced."""
        for group in self.groups:
            dist.all_reduce(numbers, op=op, group=group)
        for group in reversed(self.below):
            dist.broadcast(numbers, group_src=0, group=group)

    def gathered(self, value: T) -> list[T] | None:
        """Return the values of all ranks, by rank, on rank 0; None on the others."""
        return self._upwards([value], lambda lists: list(chain.from_iterable(lists)))

    def first_of(self, value: T) -> T:
        """Return rank 0's value on all ranks."""
        agreed = [value]
        for group in reversed(self.groups):
            dist.broadcast_object_list(agreed, group_src=0, group=group)
        return agreed[0]

    def combined(self, value: T, combine: Callable[[Sequence[T]], T]) -> T:
        """Return on all ranks their values combined by a function of some of them, in the order of the ranks."""
        of_all = self._upwards(value, combine)
        return self.first_of(value if of_all is None else of_all)

    def _upwards(self, value: T, combine: Callable[[Sequence[T]], T]) -> T | None:
        for group in self.groups:
            is_first = dist.get_rank(group) == 0
            of_group = [value] * dist.get_world_size(group) if is_first else None
            dist.gather_object(value, of_group, group_dst=0, group=group)
            if of_group is None:
                return None
            value = combine(of_group)
        return value


def levels(world_size: int, fan_out: int) -> list[list[range]]:
    """Return the groups of each level, blocks of ranks first; those of one rank are left out."""
    found, step = [], 1
    while step < world_size:
        begins = range(0, world_size, step * fan_out)
        groups = [range(begin, min(begin + step * fan_out, world_size), step) for begin in begins]
        found.append([ranks for ranks in groups if len(ranks) > 1])
        step *= fan_out
    return found


AGREEMENT = "agreement"
"""Name of the thread in which a reduction goes on that has begun."""


class _Thread:
    """Calls a function beside the main thread; a daemon, so that a process can end while it waits for other ranks."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=AGREEMENT, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for its end, and raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self._error = error


_trees: dict[dist.ProcessGroup, Tree] = {}


def join_tree(timeout_minutes: int) -> None:
    """Make the tree of the default process group's ranks, unless that is a small one of gloo itself; collective."""
    _trees.clear()
    if dist.get_backend() not in {"fake", "gloo"} or (dist.get_backend() == "gloo" and dist.get_world_size() > FAN_OUT):
        _trees[world_group()] = Tree.between_hosts("agreement of all ranks", timeout_minutes)


def tree_of_world() -> Tree:
    """Return the tree that `join_tree` has made, or that of the default process group; for the main thread."""
    if dist.get_world_size() == 1 or dist.get_backend() == "fake":  # a planned world has no other ranks
        return Tree()
    return _trees.get(world_group()) or Tree((world_group(),))


def world_group() -> dist.ProcessGroup:
    """Return the default process group, of all ranks; RuntimeError without one."""
    group = dist.group.WORLD
    if group is None:
        msg = "torch.distributed is not initialized"
        raise RuntimeError(msg)
    return group


def first_problem(problem: str | None) -> str | None:
    """Return the problem of the lowest rank that has one, on every rank. All ranks call it together."""
    return tree_of_world().combined(problem, lambda some: next((each for each in some if each is not None), None))


def on_rank0(ask: Callable[[], T], tree: Tree | None = None) -> T:
    """Return the result of `ask` on rank 0, on every rank. Collective: every rank of the world calls it.

    Its PretrainError is raised on every rank, any other error as a RuntimeError on the other ranks. They wait in
    `tree`; None: in that of the world, with the timeout of the training.
    """
    outcome: list[Any] = [None, None]
    own: Exception | None = None
    if dist.get_rank() == 0:
        try:
            outcome[0] = ask()
        except PretrainError as error:
            outcome[1] = own = error
        except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for this one's answer
            own = error
            outcome[1] = RuntimeError(f"rank 0 failed with {type(error).__name__}: {error}")
    answer, problem = (tree or tree_of_world()).first_of(outcome)
    if problem is not None:
        raise problem if own is None else own
    found: T = answer
    return found


def rank_rows(own: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the vectors [n] of all ranks of the group, [ranks, n], on their device; collective."""
    rows = own.new_zeros(dist.get_world_size(group), len(own))
    rows[dist.get_rank(group)] = own
    dist.all_reduce(rows, group=group)  # a sum with zeros: not every library gathers int64
    return rows
