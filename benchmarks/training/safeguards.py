"""Cost of the safeguards in a step of the quickstart: losses that are watched, the slowest rank, equal replicas.

    python -m benchmarks.training.safeguards [--rounds 40] [--keep]

One rank on the CPU, with one thread. `seconds_of_calls` are measured alone, many times: what each safeguard does on
this rank, in a step or where a line is logged. `share_of_a_step` divides what comes to one step by the step's median,
with the quickstart's `logging.log_interval`, and replicas that are compared every 100 iterations: it is arithmetic.
`seconds_of_a_step` are measured, steps with watched losses and measured attention in turn with steps that have neither
(the clock's hooks are taken off); their difference is smaller than the noise. Not in either: the two all-reduces
of a few numbers between ranks, one where a line is logged and one where replicas are compared. The losses ride in the
all-reduce of the reasons to stop, which every run has.
"""

from __future__ import annotations

import statistics

import torch

from benchmarks.timing import spread, timed
from benchmarks.training.quickstart_steps import each, micro_batches, quickstart_engine, run
from pretrain.training.safeguards.spike_watch import HostCopies, SpikeWatch
from pretrain.training.stopping import Exchange

INTERVAL = 100
"""Iterations between two comparisons of replicas."""
UNCOUNTED = 2
"""Steps before those that count."""


def measure(rounds: int) -> dict[str, object]:
    """Measure with the quickstart's engine."""
    with quickstart_engine() as engine:
        return measure_with(engine, rounds)


def measure_with(engine, rounds: int) -> dict[str, object]:
    """Return seconds of steps and calls, and the share of a step."""
    batches = micro_batches(engine.recipe)
    without, guarded = steps_in_turn(engine, batches, rounds)
    with engine.replicated_weights() as weights:
        tensors = [weight for _, weight in weights]
    calls = seconds_of_calls(engine.train_step(iter(batches), len(batches)), tensors)
    shares = shares_of_a_step(calls, statistics.median(without), engine.recipe, len(batches))
    return {
        "samples_of_a_step": engine.recipe.train.global_batch_size,
        "weights_bytes": sum(weight.numel() * weight.element_size() for weight in tensors),
        "seconds_of_calls": {name: round(value, 8) for name, value in calls.items()},
        "seconds_of_a_step": {"without": spread(without), "with": spread(guarded)},
        "share_of_a_step": {name: round(value, 6) for name, value in shares.items()},
    }


def steps_in_turn(engine, batches: list, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of steps without safeguards and with them."""
    from pretrain.training.reporting.stragglers import LocalClock

    clock, watch = LocalClock(torch.device("cpu")), spike_watch()
    exchange = Exchange(watch, timeout_minutes=1)

    def step():
        return engine.train_step(iter(batches), len(batches))

    def guarded_step():
        clock.begin_step()
        taken = step()
        clock.end_step(0, taken)
        watch.see(0, taken)
        exchange.turn()

    without, guarded = [], []
    for _ in range(rounds + UNCOUNTED):
        without.append(timed(step))
        hooks = clock.attach(engine.models)
        guarded.append(timed(guarded_step))
        for hook in hooks:
            hook.remove()
    return without[UNCOUNTED:], guarded[UNCOUNTED:]


def seconds_of_calls(taken, weights: list[torch.Tensor]) -> dict[str, float]:
    """Return the seconds of each safeguard's own work, measured alone."""
    from pretrain.training.reporting.stragglers import LocalClock, OwnTimes, slow_ranks
    from pretrain.training.safeguards.replicas import WeightHash

    clock, hashes, watch, module = LocalClock(torch.device("cpu")), WeightHash(), spike_watch(), torch.nn.Identity()
    exchange, empty = Exchange(watch, timeout_minutes=1), Exchange(timeout_minutes=1)
    ranks = [OwnTimes(attention=0.001 + rank / 1e8, data=0.0) for rank in range(1000)]

    def watch_a_loss():
        watch.see(0, taken)
        exchange.turn()

    def measure_a_call():
        clock._left = 1
        pass_a_call()

    def pass_a_call():
        clock._begin(module, ())
        clock._end(module, (), None)

    return {
        "a watched loss": each(watch_a_loss) - each(empty.turn),
        "a measured call of attention": each(measure_a_call),
        "a call of attention that is not measured": each(pass_a_call),
        "the slowest of 1000 ranks": each(lambda: slow_ranks(ranks, 1.0), 50),
        "hashes of all weights": statistics.median(timed(lambda: hashes.buckets(weights).tolist()) for _ in range(9)),
    }


def shares_of_a_step(calls: dict[str, float], seconds: float, recipe, batches: int) -> dict[str, float]:
    """Return the share of a step's seconds that comes to each safeguard."""
    from pretrain.training.reporting.stragglers import CALLS

    layers = min(CALLS, recipe.model.num_layers)
    in_a_step = {
        "losses": calls["a watched loss"],
        "stragglers": layers * calls["a measured call of attention"]
        + layers * (2 * batches - 1) * calls["a call of attention that is not measured"]
        + calls["the slowest of 1000 ranks"] / recipe.logging.log_interval,
        "replicas": calls["hashes of all weights"] / INTERVAL,
    }
    in_a_step["all"] = sum(in_a_step.values())
    return {name: value / seconds for name, value in in_a_step.items()}


def spike_watch() -> SpikeWatch:
    """Return a watch with the losses that a training has after a while."""
    copies = HostCopies(torch.device("cpu"), pin_memory=False)
    return SpikeWatch(2.0, copies, [2.0] * 100, judges_nan=True, is_early=False)


if __name__ == "__main__":
    run("safeguards", __doc__, measure)
