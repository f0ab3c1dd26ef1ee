"""Decisions of rank 0 for all ranks, before a process group exists."""

from __future__ import annotations

import functools
import json
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pretrain.errors import LostRanksError
from pretrain.launch.error_exit_code import exit_code_of
from pretrain.launch.restart_count import store_of_ranks
from pretrain.observe.rank_names import rank_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed import Store  # type: ignore[attr-defined]

    from pretrain.launch.world import World

_DECISION_TIMEOUT = timedelta(days=1)
"""Timeout of the other ranks, long enough for rank 0 to build a corpus."""
_READ_TIMEOUT = 30.0
_NAMED = 8
"""Most hosts in a message."""
HOST = "host"
"""Subject that ranks tell first: their hosts."""


def first_rank_decides(decide: Callable[[], str], world: World, *, about: str = "the run directory") -> str:
    """Return the result of `decide`, which only rank 0 calls; every rank calls this once per process and subject.

    Raises:
        Exception: on rank 0, whatever `decide` raised.
        SystemExit: on the other ranks, without a message, because rank 0 prints one.
    """
    if world.world_size == 1:
        return decide()
    store = _store()
    if world.rank == 0:
        return _publish(decide, store, world.world_size - 1, about)
    store.wait([f"decision on {about}"], _DECISION_TIMEOUT)
    decision = json.loads(store.get(f"decision on {about}"))
    store.add(f"readers of {about}", 1)
    if isinstance(decision, int):
        raise SystemExit(decision)
    return str(decision)


def tell_first_rank(subject: str, text: str, world: World) -> None:
    """Tell rank 0 a text; every rank calls this once per process and subject."""
    _store().set(f"{subject} of {world.rank}", text)


def told_to_first_rank(subject: str, world: World, timeout: timedelta) -> list[str]:
    """Return all texts by rank; called by rank 0.

    Raises:
        LostRanksError: ranks have told nothing within `timeout`; it names them, and hosts that they have told.
    """
    from torch.distributed import DistError  # noqa: PLC0415  as below

    store, keys = _store(), [f"{subject} of {rank}" for rank in range(world.world_size)]
    try:
        store.wait(keys, timeout)
    except DistError as error:
        silent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        msg = (
            f"rank 0 has heard nothing of the {subject} of {_with_hosts(silent, store)} within {timeout}: they have "
            "died, hang, or read their files too slowly.\n"
            "Look at their output and processes; slow ones need more parallel.distributed_timeout_minutes."
        )
        raise LostRanksError(msg) from error
    return [told.decode() for told in store.multi_get(keys)]


def _with_hosts(ranks: Iterable[int], store: Store) -> str:
    on_hosts: dict[str, list[int]] = {}
    for rank in ranks:
        key = f"{HOST} of {rank}"
        on_hosts.setdefault(f" on {store.get(key).decode()}" if store.check([key]) else "", []).append(rank)
    named = [f"{rank_names(those)}{host}" for host, those in on_hosts.items()]
    return ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")


def _publish(decide: Callable[[], str], store: Store, others: int, about: str) -> str:
    try:
        decision = decide()
    except BaseException as error:
        store.set(f"decision on {about}", json.dumps(int(exit_code_of(error))))
        # This rank serves the store and is about to end: the others must have read it by then.
        deadline = time.monotonic() + _READ_TIMEOUT
        while store.add(f"readers of {about}", 0) < others and time.monotonic() < deadline:
            time.sleep(0.05)
        raise
    store.set(f"decision on {about}", json.dumps(decision))
    return decision


@functools.cache
def _store() -> Store:
    """Return the store of the ranks without what was decided before a restart by torchrun."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # noqa: PLC0415  torch is slow

    return PrefixStore(f"pretrain {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store_of_ranks())
