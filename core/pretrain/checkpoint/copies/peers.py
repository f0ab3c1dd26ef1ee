"""What ranks of the same number on neighbouring nodes send to each other, over the device's own process group."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.checkpoint.shares import device_of
from pretrain.collectives import world_group
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

_CHUNK = 64 << 20  # bytes of a file that are sent at a time
_NONE = -1


class Peers:
    """The ranks of this rank's number on the next node and on the one before; the last node's next is the first."""

    def __init__(self, rank: int, ranks: int, of_node: int) -> None:
        """Take the own rank, the number of all ranks, and of those on this node; collective.

        CheckpointError: nodes have other numbers of ranks.
        """
        self.rank, self.ranks, self.of_node, self.are_several = rank, ranks, of_node, ranks > of_node
        self.next, self.before = (rank + of_node) % ranks, (rank - of_node) % ranks
        least, most = self._least(of_node), self.most(of_node)
        if least != most:
            msg = (
                f"checkpoint.local_interval: nodes have from {least} to {most} ranks.\n"
                "Give every node the same number of ranks, or set checkpoint.local_interval to 0."
            )
            raise CheckpointError(msg)

    @property
    def owners(self) -> tuple[int, int]:
        """The ranks whose copies are on this rank's disk."""
        return self.rank, self.before

    def most(self, number: int) -> int:
        """Return the largest number of all ranks."""
        return -self._least(-number)

    def newest_of_all(self, there: Iterable[int]) -> int:
        """Return the largest number, from 0, that every rank has; -1 without one."""
        limit, numbers = 2**62, set(there)
        while (found := self._least(max((each for each in numbers if each <= limit), default=_NONE))) != limit:
            limit = found
        return found

    def numbers_of_next(self, numbers: Sequence[int], most: int) -> set[int]:
        """Give up to `most` numbers to the node before, and return those of the next one."""
        if not self.are_several:
            return set()
        own = torch.tensor([*numbers, *[_NONE] * (most - len(numbers))])
        return set(self._swapped(own, torch.empty_like(own), self.before, self.next).tolist()) - {_NONE}

    def number_of_before(self, number: int) -> int:
        """Give a number to the next node, and return that of the node before."""
        own = torch.tensor([number])
        return int(self._swapped(own, torch.empty_like(own), self.next, self.before).item())

    def pass_to_next(self, file: Path, into: Path) -> str | None:
        """Send a file to the next node, and write that of the node before; return why one could not be."""
        return self._pass(file, into, self.next, self.before)

    def pass_to_before(self, file: Path | None, into: Path | None) -> str | None:
        """Send a file to the node before, if it lacks it, and write that of the next node, if this one does."""
        return self._pass(file, into, self.before, self.next)

    def _pass(self, file: Path | None, into: Path | None, to: int, source: int) -> str | None:
        sent, received = _Sent(file), _Received(into)
        size = torch.tensor([sent.size])
        theirs = int(self._swapped(size, torch.empty_like(size), to, source).item())
        for begin in range(0, max(sent.size, theirs), _CHUNK):
            got = torch.empty(min(max(theirs - begin, 0), _CHUNK), dtype=torch.uint8)
            received.add(self._swapped(sent.read(begin), got, to, source).numpy())
        return sent.problem or received.problem

    @staticmethod
    def _swapped(own: Tensor, theirs: Tensor, to: int, source: int) -> Tensor:
        """Send a tensor to one rank and receive another's, on the host; an empty one is not sent."""
        device = _device(own)
        sent, got = own.to(device), theirs.to(device)
        operations = [dist.P2POp(dist.isend, sent, to)] if sent.numel() else []
        operations += [dist.P2POp(dist.irecv, got, source)] if got.numel() else []
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return got.cpu()

    @staticmethod
    def _least(number: int) -> int:
        found = torch.tensor(number)
        found = found.to(_device(found))
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return int(found.item())


def _device(tensor: Tensor) -> str:
    return device_of(world_group(), tensor)


class _Sent:
    """A file that another rank gets; where it cannot be read, zeros are sent in place of the rest."""

    def __init__(self, file: Path | None) -> None:
        self._file, self.size = file, 0
        self.problem: str | None = None
        if file is not None:
            try:
                self.size = file.stat().st_size
            except OSError as error:
                self.problem = str(error)

    def read(self, begin: int) -> Tensor:
        """Return the bytes from `begin` on, up to `_CHUNK`."""
        chunk = torch.zeros(min(max(self.size - begin, 0), _CHUNK), dtype=torch.uint8)
        if self._file is not None and self.problem is None and len(chunk):
            try:
                with self._file.open("rb") as file:
                    file.seek(begin)
                    file.readinto(chunk.numpy().data)
            except OSError as error:
                self.problem = str(error)
        return chunk


class _Received:
    """A file that another rank sends; where it cannot be written, the rest is received all the same."""

    def __init__(self, into: Path | None) -> None:
        self._into = into
        self.problem: str | None = None
        if into is not None:
            self._try(partial(self._begin, into))

    def add(self, data: Any) -> None:
        if self._into is not None and self.problem is None:
            self._try(partial(self._append, self._into, data))

    def _begin(self, into: Path) -> None:
        into.parent.mkdir(parents=True, exist_ok=True)
        into.unlink(missing_ok=True)

    def _append(self, into: Path, data: Any) -> None:
        with into.open("ab") as file:
            file.write(data)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self.problem = str(error)
