"""Decisions of rank 0 for all ranks, before a process group exists."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, LostRanksError, PretrainError, shows_traceback
from pretrain.launch.process_exit import exit_code_of
from pretrain.report.plain_text import rank_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed import Store  # type: ignore[attr-defined]

    from pretrain.launch.world import World


_DECISION_TIMEOUT = timedelta(days=1)  # timeout of the other ranks, long enough for rank 0 to build a corpus
_READ_TIMEOUT = 30.0
_NAMED = 8  # most hosts in a message
HOST = "host"  # subject that ranks tell first: their hosts


def rank0_decides(decide: Callable[[], str], world: World, *, about: str = "the run directory") -> str:
    """Return the result of `decide`, which only rank 0 calls; every rank calls this once per process and subject."""
    # What `decide` raises is told to the launcher and ends rank 0; the others leave by SystemExit. Where no launcher of
    # ours is there, so does rank 0, which has printed a user error.
    if world.world_size == 1:
        return decide()
    store = _store()
    if world.rank == 0:
        return _publish(decide, store, world, about)
    store.wait([f"decision on {about}"], _DECISION_TIMEOUT)
    decision = json.loads(store.get(f"decision on {about}"))
    store.add(f"readers of {about}", 1)
    if isinstance(decision, int):
        raise SystemExit(decision)
    return str(decision)


def tell_rank0(subject: str, text: str, world: World) -> None:
    """Tell rank 0 a text; every rank calls this once per process and subject."""
    _store().set(f"{subject} of {world.rank}", text)


def gathered_on_rank0(subject: str, world: World, timeout: timedelta) -> list[str]:
    """Return all texts by rank; called by rank 0. LostRanksError names silent ranks, with the hosts they have told."""
    from torch.distributed import DistStoreError  # noqa: PLC0415  as below

    store, keys = _store(), [f"{subject} of {rank}" for rank in range(world.world_size)]
    try:
        store.wait(keys, timeout)
    except DistStoreError as error:
        silent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        minutes = timeout.total_seconds() / 60
        msg = (
            f"These ranks have not sent their {subject} within {minutes:g} minute{'s' * (minutes != 1)}: "
            f"{_with_hosts(silent, store)}.\n"
            "They died, hang, or read their files too slowly. Look at their output and processes; for slow ones raise "
            "parallel.distributed_timeout_minutes."
        )
        raise LostRanksError(msg, len(silent)) from error
    return [told.decode() for told in store.multi_get(keys)]


def _with_hosts(ranks: Iterable[int], store: Store) -> str:
    on_hosts: dict[str, list[int]] = {}
    for rank in ranks:
        key = f"{HOST} of {rank}"
        on_hosts.setdefault(f" on {store.get(key).decode()}" if store.check([key]) else "", []).append(rank)
    named = [f"{rank_names(those)}{host}" for host, those in on_hosts.items()]
    return ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")


def _publish(decide: Callable[[], str], store: Store, world: World, about: str) -> str:
    try:
        decision = decide()
    except BaseException as error:
        code = int(exit_code_of(error))
        is_printed = _tell(error, world)  # first: once the others end, the launcher may end this rank too
        store.set(f"decision on {about}", json.dumps(code))
        lost = error.ranks if isinstance(error, LostRanksError) else 0
        _await_readers(store, world.world_size - 1 - lost, about)
        if is_printed:
            raise SystemExit(code) from error
        raise
    store.set(f"decision on {about}", json.dumps(decision))
    return decision


def _tell(error: BaseException, world: World) -> bool:
    """Tell the launcher an error; where none of ours is there, print one of the user and return True."""
    if world.tell_error is not None and isinstance(error, Exception):
        world.tell_error(error)
    elif isinstance(error, PretrainError) and not shows_traceback():
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        return True
    return False


def _await_readers(store: Store, others: int, about: str) -> None:
    """Wait until the others have read the decision: this rank serves the store, and is about to end."""
    deadline = time.monotonic() + _READ_TIMEOUT
    while store.add(f"readers of {about}", 0) < others and time.monotonic() < deadline:
        time.sleep(0.05)


@functools.cache
def _store() -> Store:
    """Return the store of the ranks without what was decided before a restart by torchrun."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # noqa: PLC0415  torch is slow

    return PrefixStore(f"pretrain {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store_of_ranks())


_COUNT = "TORCHELASTIC_RESTART_COUNT"
_TIMEOUT = timedelta(minutes=15)
"""Timeout of the ranks for one another; the first import of torch from a network file system may take minutes."""
_STARTS, _ASKED, _ANSWER, _READ = "pretrain/starts", "pretrain/asked", "pretrain/answer", "pretrain/read"
"""Keys: how many rank 0s there were; how many other ranks; the answer for one of them; how many have read it."""


def agree_on_restart_count(world: World) -> None:
    """Set torchrun's variable to one count: it says under which keys ranks meet, and whether the run goes on."""
    # After a failure on one node only that node's agent counts a restart, while the store still holds what the ranks
    # before have written. So each rank asks under a number that none had before, which the new rank 0 alone answers.
    if world.world_size == 1 or _COUNT not in os.environ:
        return
    from torch.distributed import DistError  # noqa: PLC0415  torch is slow

    store = store_of_ranks()
    try:
        count = _answer(store, world.world_size - 1) if world.rank == 0 else _ask(store)
    except DistError as error:
        msg = f"rank 0 did not answer rank {world.rank} within {_TIMEOUT} ({str(error).splitlines()[0]})."
        raise LaunchError(msg) from error
    os.environ[_COUNT] = str(count)


@functools.cache
def store_of_ranks() -> Store:
    """Return the store that `env://` gives; kept for the life of the process, as other ranks may still read it."""
    # Rank 0 serves it on MASTER_PORT, unless torchrun does, and waits until all have come. `init_process_group` shares
    # the server later.
    from torch.distributed import DistStoreError  # noqa: PLC0415  torch is slow
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415  as above

    try:
        store: Store = next(iter(rendezvous("env://", timeout=_TIMEOUT)))[0]
    except DistStoreError as error:
        come = re.search(r"\d+/\d+", str(error))
        msg = (
            f"only {come[0].replace('/', ' of ') if come else 'some'} ranks have joined within {_TIMEOUT}.\n"
            "Look at the output and processes of the others: they died, or hang while they start."
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
            msg = f"only {come} of the other {others} ranks have joined within {_TIMEOUT}."
            raise LaunchError(msg)
        answered = asked
        time.sleep(0.05)
    return count
