"""Agreement on an error across ranks, so that no rank waits for one that has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from pretrain.errors import PretrainError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def first_problem(problem: str | None) -> str | None:
    """Return the problem of the first rank that has one, on every rank; all ranks call it together."""
    problems = [problem] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((each for each in problems if each is not None), None)


def of_first_rank(ask: Callable[[], T]) -> T:
    """Return rank 0's answer on every rank; all ranks call it together.

    A shared file system may show a file to one rank and not yet to another.

    Raises:
        PretrainError: the one that rank 0 met, on every rank.
    """
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = ask()
        except PretrainError as error:
            told[1] = error
    dist.broadcast_object_list(told)
    answer, problem = told
    if problem is not None:
        raise problem
    found: T = answer
    return found
