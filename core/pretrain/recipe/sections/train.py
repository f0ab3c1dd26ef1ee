"""Section `train`: length, batches, loss spikes, and reasons to stop early."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from pretrain.recipe.section import Bool, Float, Int, LocalPath, Section, as_number, shown

if TYPE_CHECKING:
    from collections.abc import Iterable


_RANGE = re.compile(r"(\d+)-(\d+)")


def _entries(given: object) -> object:
    """Read a list, one entry alone, Megatron's form "2 100-300", or one with commas."""
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    return tuple(_entry(entry) for entry in (given if isinstance(given, list | tuple) else [given]))


def _entry(given: object) -> int | str:
    number = as_number(given)
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return number
    found = _RANGE.fullmatch(given) if isinstance(given, str) else None
    if found is None or not 0 < int(found[1]) <= int(found[2]):
        msg = f"{shown(given)} is neither an iteration, from 1, nor a range of them, such as 100-300."
        raise ValueError(msg)
    return f"{int(found[1])}-{int(found[2])}"


Iterations = Annotated[tuple[int | str, ...], BeforeValidator(_entries)]


def ranges(entries: Iterable[int | str]) -> list[tuple[int, int]]:
    """Return the first and the last iteration of each entry."""
    found = []
    for entry in entries:
        first, _, last = str(entry).partition("-")
        found.append((int(first), int(last or first)))
    return found


class LossSpikeSection(Section):
    """Losses that suddenly rise. Batches around a spike are left out as in PaLM (arXiv:2204.02311, section 5.1).

    PaLM started again about 100 steps before it; here the start is the latest checkpoint before it, however near.
    """

    threshold: Float | None = Field(default=None, gt=1)
    """A loss above this many times the median of the last 100 steps (after at least 20) is a spike; so is one that is
    not finite, except in fp16. By default losses are not watched."""
    action: Literal["warn", "skip", "rollback"] = "warn"
    """warn; skip: leave out the step's update (the host waits for the loss in each step); rollback: go back to the last
    checkpoint before the spike, and leave out the batches around it."""
    leave_out: Int = Field(default=100, ge=0)
    """Rollback leaves out the batches of this many iterations before a spike, and of as many after it (PaLM: 200 to 500
    batches); at least one before a loss that is not finite."""


def _split_words(given: object) -> object:
    """Read Megatron's form "2 2 1000"."""
    return given.split() if isinstance(given, str) else given


Rampup = Annotated[tuple[Int, Int, Int], BeforeValidator(_split_words)]


class TrainSection(Section):
    """Length of the training, its batches, and its reasons to stop early."""

    micro_batch_size: Int = Field(gt=0)
    """Samples that one rank computes at a time."""
    global_batch_size: Int = Field(gt=0)
    """Samples of one optimizer step over all ranks."""
    rampup_batch_size: Rampup | None = None
    """[start, increment, samples]: the global batch grows from start by increment, evenly over this many samples."""
    calculate_per_token_loss: Bool = False
    """Whether the loss is a mean over the tokens of a global batch, not over its micro-batches' means, which differ
    from it where tokens are left out of the loss."""
    train_iters: Int | None = Field(default=None, ge=0)
    """Length of the training in iterations. 0, or no more than `checkpoint.load` has taken: nothing is trained, only
    evaluated and saved."""
    train_samples: Int | None = Field(default=None, gt=0)
    """Length of the training in samples, instead of train_iters."""
    iterations_to_skip: Iterations = ()
    """Iterations whose batches are left out, numbered as in the log, from 1: [7, 100-300]. Their data is read, and
    iteration and samples advance; weights, optimizer and schedule do not."""
    loss_spike: LossSpikeSection = LossSpikeSection()
    check_replicas_interval: Int | None = Field(default=None, gt=0)
    """Iterations between two comparisons of the data-parallel replicas' weights, by hashes; by default none.
    parallel.overlap_param_gather gathers them right before, so little is found."""
    seed: Int = Field(default=1234, ge=0, lt=2**31)
    """Seed of weights, dropout and the order of the samples."""
    deterministic_mode: Bool = False
    """Use only kernels that give the same bits every time; an operation without one is an error."""
    manual_gc: Bool = True
    """Whether Python's garbage is collected between steps alone, on all ranks at the same time, so that no rank waits
    for another's collector."""
    manual_gc_interval: Int = Field(default=50, gt=0)
    """Iterations between two such collections."""
    exit_interval: Int | None = Field(default=None, gt=0)
    """Save and exit at multiples of this number of iterations."""
    exit_duration_in_mins: Float | None = Field(default=None, gt=0)
    """Save and exit after this time, in minutes."""
    kill_switch_path: LocalPath | None = None
    """Save and exit as soon as this file exists; checked at every iteration, and no run starts with it."""
