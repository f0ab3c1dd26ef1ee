"""Agreement of all ranks on an error, an answer or a few numbers.

A rank that fails, or that sees other files, would otherwise leave the others waiting in their next collective.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from pretrain.errors import PretrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def first_problem(problem: str | None) -> str | None:
    """Return the problem of the lowest rank that has one, on every rank. All ranks call it together."""
    problems = [problem] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((each for each in problems if each is not None), None)


def on_rank0(ask: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Return the result of `ask` on rank 0, on every rank. Collective: every rank of the world calls it.

    Its PretrainError is raised on every rank, any other error as a RuntimeError on the other ranks. They wait in
    `group`, one of all ranks; None: the default one, with the timeout of the training.
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
    dist.broadcast_object_list(outcome, group=group)
    answer, problem = outcome
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
