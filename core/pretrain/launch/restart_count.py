"""Count of torchrun's restarts, on which all ranks agree: each of its agents counts only those that it began itself."""

from __future__ import annotations

import functools
import os
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, LostRanksError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from pretrain.launch.world import World

_COUNT = "TORCHELASTIC_RESTART_COUNT"
_TIMEOUT = timedelta(minutes=15)
"""Timeout of the ranks for one another; the first import of torch from a network file system may take minutes."""
_STARTS, _ASKED, _ANSWER, _READ = "pretrain/starts", "pretrain/asked", "pretrain/answer", "pretrain/read"
"""Keys: how many rank 0s there were; how many other ranks; the answer for one of them; how many have read it."""


def agree_on_restart_count(world: World) -> None:
    """Set torchrun's variable to one count: it says under which keys ranks meet, and whether the run goes on.

    After a failure on one node only that node's agent counts a restart, while the store still holds what the ranks
    before have written. So each rank asks under a number that none had before, which the new rank 0 alone answers.

    Raises:
        LaunchError: ranks have not come within 15 minutes.
    """
    if world.world_size == 1 or _COUNT not in os.environ:
        return
    from torch.distributed import DistError  # noqa: PLC0415  torch is slow

    store = store_of_ranks()
    try:
        count = _answer(store, world.world_size - 1) if world.rank == 0 else _ask(store)
    except DistError as error:
        msg = f"rank 0 has given no word to rank {world.rank} within {_TIMEOUT} ({str(error).splitlines()[0]})."
        raise LaunchError(msg) from error
    os.environ[_COUNT] = str(count)


@functools.cache
def store_of_ranks() -> Store:
    """Return the store that `env://` gives; kept for the life of the process, as other ranks may still read it.

    Rank 0 serves it on MASTER_PORT, unless torchrun does, and waits until all have come. `init_process_group` shares
    the server later.

    Raises:
        LostRanksError: on rank 0; ranks have not come within 15 minutes. Which ones, torch's store does not tell.
    """
    from torch.distributed import DistStoreError  # noqa: PLC0415  torch is slow
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415  as above

    try:
        store: Store = next(iter(rendezvous("env://", timeout=_TIMEOUT)))[0]
    except DistStoreError as error:
        come = re.search(r"\d+/\d+", str(error))
        msg = (
            f"only {come[0].replace('/', ' of ') if come else 'some'} ranks have come within {_TIMEOUT}.\n"
            "Look at the output and processes of the others: they have died, or hang while they start."
        )
        raise LostRanksError(msg) from error
    return store


def _ask(store: Store) -> int:
    answer = f"{_ANSWER}/{store.add(_ASKED, 1)}"
    store.wait([answer], _TIMEOUT)
    count = int(store.get(answer))
    store.add(f"{_READ}/{count}", 1)
    return count


def _answer(store: Store, others: int) -> int:
    counted = int(os.environ[_COUNT])
    count = store.add(_STARTS, 1) - 1
    if count < counted:  # the store is younger than this agent's count
        count = store.add(_STARTS, counted - count) - 1
    deadline, answered = time.monotonic() + _TIMEOUT.total_seconds(), 0
    while (come := store.add(f"{_READ}/{count}", 0)) < others:
        asked = store.add(_ASKED, 0)
        for number in range(answered + 1, asked + 1):  # those of ranks that have died are answered, too
            store.set(f"{_ANSWER}/{number}", str(count))
        if time.monotonic() > deadline:
            msg = f"only {come} of the other {others} ranks have come within {_TIMEOUT}."
            raise LaunchError(msg)
        answered = asked
        time.sleep(0.05)
    return count
