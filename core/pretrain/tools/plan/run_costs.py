"""What a start, a checkpoint and a failure cost a run, and the share of its time that is left for training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, expm1, sqrt
from typing import TYPE_CHECKING, Any

from pretrain.engine.optimizers.choice import most_state_bytes, state_bytes
from pretrain.report.flops import parameter_count
from pretrain.tools.plan.step_time import figure

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.tools.plan.step_time import StepTime

GIB = 2**30
_NEWTON_STEPS = 8  # which double the digits each

_OF_WEIGHTS = {"fp32": 4, "bf16": 2 + 4, "fp16": 2 + 4}
"""Bytes a parameter of the weights, with the fp32 main weights where they are other ones."""


def checkpoint_bytes(recipe: Recipe, vocab_size: int) -> int:
    """Return the bytes of a checkpoint: weights, main weights and optimizer state of every parameter, each once.

    `vocab_size` are the tokenizer's entries, before padding.
    """
    parameters, of_layers = (parameter_count(recipe.model, rows) for rows in (recipe.padded_vocab_size(vocab_size), 0))
    state = of_layers * state_bytes(recipe.optimizer) + (parameters - of_layers) * most_state_bytes(recipe.optimizer)
    return parameters * _OF_WEIGHTS[recipe.precision.dtype] + state


def best_interval(save: float, between_failures: float) -> float:
    """Return the seconds of training between two saves with which `useful_share` is the largest.

    `save` are the seconds that a save keeps the run from training, and M those between two failures on average. It is
    where interval = M (1 - exp(-(interval + save) / M)), found by Newton's method from below M and sqrt(2 save M): that
    is Young 1974 ("A first order approximation to the optimum checkpoint interval", CACM 17:9), for `save` far below M.
    """
    mean, interval = between_failures, min(sqrt(2 * save * between_failures), between_failures)
    for _ in range(_NEWTON_STEPS):
        slope = -expm1(-(interval + save) / mean)
        interval += (mean * slope - interval) / slope
    return interval


def useful_share(interval: float, save: float, restart: float, between_failures: float) -> float:
    """Return the share of a run's time in which it trains steps that are not lost, 0 to 1; all in seconds.

    A run saves after each `interval` of training, and begins again `restart` after a failure, which may come at any
    time, also while it saves or begins. interval / (M exp(restart / M) (exp((interval + save) / M) - 1)): the inverse
    of the wall time in the complete model of Daly 2006 ("A higher order estimate of the optimum checkpoint interval for
    restart dumps", FGCS 22:3), for failures of a Poisson process.
    """
    mean = between_failures  # the exponents are negative, so that none is too large for a float
    return interval / mean * exp(-(restart + interval + save) / mean) / -expm1(-(interval + save) / mean)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCosts:
    """Costs of a run besides its steps, of what is known; in bytes and seconds."""

    checkpoint_bytes: int
    ranks: int  # which write and read equal shares of it
    async_save: bool  # steps go on while it is written
    storage_bandwidth: float | None = None  # bytes/s at which all ranks together write or read it
    mtbf_seconds: float | None = None  # of the whole run, on average
    start_seconds: float | None = None  # from a failure to the first step, without reading the checkpoint
    save_interval_seconds: float | None = None  # of the recipe; None if it has none, or the step's time is not known

    @property
    def transfer(self) -> float | None:
        """Seconds to write or to read a checkpoint."""
        return None if self.storage_bandwidth is None else self.checkpoint_bytes / self.storage_bandwidth

    @property
    def restart(self) -> float | None:
        """Seconds from a failure to the first step."""
        return None if self.start_seconds is None or self.transfer is None else self.start_seconds + self.transfer

    @property
    def interval(self) -> float | None:
        """Best seconds of training between two saves."""
        if self.transfer is None or self.mtbf_seconds is None:
            return None
        return best_interval(self.transfer, self.mtbf_seconds)

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values, by the names of docs/plan.md."""
        best, own = self.interval, self.save_interval_seconds
        return {
            **asdict(self),
            "transfer_seconds": self.transfer,
            "restart_seconds": self.restart,
            "best_save_interval_seconds": best,
            "failure_seconds": self.of_failure(best),
            "useful_share": self.share(best),
            "useful_share_of_recipe": self.share(own),
        }

    def of_failure(self, interval: float | None) -> float | None:
        """Return what a failure costs on average: the restart, and half of what is between the ends of two saves."""
        if interval is None or self.restart is None or self.transfer is None:
            return None
        return self.restart + (interval + self.transfer) / 2

    def share(self, interval: float | None) -> float | None:
        """Return the useful share of the run's time with a save after so many seconds of training."""
        if interval is None or self.transfer is None or self.restart is None or self.mtbf_seconds is None:
            return None
        return useful_share(interval, self.transfer, self.restart, self.mtbf_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCostOptions:
    """What the command line says about storage and failures; None where it does not."""

    storage_bandwidth: float | None = None  # bytes/s
    mtbf_seconds: float | None = None  # seconds
    start_seconds: float | None = None  # seconds

    @property
    def are_given(self) -> bool:
        """Whether any is: without, a plan has no costs besides those of a step."""
        return any(each is not None for each in (self.storage_bandwidth, self.mtbf_seconds, self.start_seconds))


def run_costs(recipe: Recipe, vocab_size: int, ranks: int, time: StepTime | None, *, given: RunCostOptions) -> RunCosts:
    """Return what a run of so many ranks costs besides its steps; `time` is that of a step."""
    iterations = recipe.checkpoint.save_interval
    return RunCosts(
        checkpoint_bytes=checkpoint_bytes(recipe, vocab_size),
        ranks=ranks,
        async_save=recipe.checkpoint.async_save,
        storage_bandwidth=given.storage_bandwidth,
        mtbf_seconds=given.mtbf_seconds,
        start_seconds=given.start_seconds,
        save_interval_seconds=iterations * time.seconds.mean if iterations and time is not None else None,
    )


def cost_lines(costs: RunCosts | None) -> list[str]:
    """Return the lines of the screen, [] without costs; a last one names the options that would show more."""
    if costs is None:
        return []
    each = f", {_gib(costs.checkpoint_bytes / costs.ranks)} of it by each of {costs.ranks} ranks"
    written = "" if costs.transfer is None else f"; written in {duration(costs.transfer)}"
    lines = [f"checkpoint: {_gib(costs.checkpoint_bytes)}{each if costs.ranks > 1 else ''}{written}"]
    if costs.restart is not None and costs.start_seconds is not None and costs.transfer is not None:
        parts = f"{duration(costs.start_seconds)} as given, and {duration(costs.transfer)} to read the checkpoint"
        lines.append(f"start, and restart: {duration(costs.restart)}, {parts}")
    if costs.interval is not None and costs.mtbf_seconds is not None:
        often = f"with a failure every {duration(costs.mtbf_seconds)}"
        lines.append(
            f"best save interval: {duration(costs.interval)} of training, {often}{_result(costs, costs.interval)}"
        )
    if (own := costs.save_interval_seconds) is not None and costs.share(own) is not None:
        lines.append(f"the recipe's save interval: {duration(own)}{_result(costs, own)}")
    if costs.async_save and costs.transfer is not None:
        lines.append("async_save: steps go on while it is written, so saves cost less than is counted here")
    options = (("--storage", costs.storage_bandwidth), ("--mtbf", costs.mtbf_seconds), ("--start", costs.start_seconds))
    missing = [name for name, value in options if value is None]
    return [*lines, f"give {' and '.join(missing)} for the share of useful time"] if missing else lines


def _result(costs: RunCosts, interval: float) -> str:
    """Return what comes of a save interval, to follow it; "" if that is not known."""
    lost, useful = costs.of_failure(interval), costs.share(interval)
    if lost is None or useful is None:
        return ""
    return f"; then a failure costs {duration(lost)}, and {100 * useful:.1f} % of the time is useful"


def _gib(size: float) -> str:
    return f"{figure(size / GIB)} GiB"


def duration(seconds: float) -> str:
    """Return seconds in the largest unit of which there are two or more: "40.0 s", "12.5 min", "24.0 h"."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds)} s"
