"""Cost of all that watches a run, measured in turn: hang report, slowest rank, watched losses.

    python -m benchmarks.training.watched_steps [--rounds 10000] [--keep]

One rank on the CPU, with one thread. Steps of the quickstart differ by 5 % among each other, a hundred times what is
looked for. So the steps that are taken in turn, watched and not, are those of a model as deep as the quickstart's with
as many micro-batches, but narrow: the same calls of Python, a hundredth of the arithmetic. `microseconds` is the mean
of what a watched step takes longer than the other one beside it, without the tenth of the pairs at either end, with
its standard error; `share_of_a_step` divides it by the median of the quickstart's own steps. A watched step has the
place of the main thread, the marks of layers, measured attention, a watched loss, and every 10th the search for the
slowest of 1,000 ranks. Not in it: the hashes of weights (`safeguards`), the records of collectives (`hang_report`), and
what one rank alone does not do: the all-reduce between hosts of each iteration (Exchange), the turns of it that are
waited for where a line is logged, and the all-reduce of all ranks' own times there (rank_rows).
"""

from __future__ import annotations

import math
import statistics
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from benchmarks.timing import timed
from benchmarks.training.quickstart_steps import micro_batches, quickstart_engine, run
from benchmarks.training.safeguards import spike_watch
from pretrain.report.hang.position import Position, shared_memory
from pretrain.training.reporting.stragglers import OwnTimes, slow_ranks
from pretrain.training.stopping import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

NARROW = ("model.hidden_size=24", "model.seq_length=16", "train.micro_batch_size=1", "train.global_batch_size=1")
PHASES = ("data", "forward_backward", "optimizer")
UNCOUNTED = 2
"""Steps before those that count."""


def measure(rounds: int) -> dict[str, object]:
    """Return what a watched step takes longer, and its share of the quickstart's step."""
    with quickstart_engine() as engine:
        batches = micro_batches(engine.recipe)
        quickstart = [timed(lambda: engine.train_step(iter(batches), len(batches))) for _ in range(20 + UNCOUNTED)]
    with quickstart_engine(*NARROW) as engine:
        without, watched = steps_in_turn(engine, rounds)
    longer = sorted(after - before for before, after in zip(without, watched, strict=True))
    kept = longer[rounds // 10 : rounds - rounds // 10]
    cost, error = statistics.mean(kept), statistics.stdev(kept) / math.sqrt(len(kept))
    seconds = statistics.median(quickstart[UNCOUNTED:])
    return {
        "rounds": rounds,
        "seconds_of_a_step": {
            "quickstart": round(seconds, 4),
            "narrow": round(statistics.median(without), 6),
            "narrow, watched": round(statistics.median(watched), 6),
        },
        "microseconds": {"mean": round(cost * 1e6, 1), "standard error": round(error * 1e6, 1)},
        "share_of_a_step": round(cost / seconds, 6),
    }


def steps_in_turn(engine, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of steps that nothing watches and of those beside them that are watched."""
    from pretrain.training.reporting.stragglers import LocalClock

    batches, clock, watch = micro_batches(engine.recipe), LocalClock(torch.device("cpu")), spike_watch()
    exchange = Exchange(watch, timeout_minutes=1)
    ranks = [OwnTimes(attention=0.001 + rank / 1e8, data=0.0) for rank in range(1000)]
    with shared_memory(None) as (memory, _):
        position = Position(memory)  # the memory lives on with it

    def step():
        return engine.train_step(iter(batches), len(batches))

    def watched_step(iteration):
        with position.step(iteration):
            for phase in PHASES:
                position.leave(position.enter(phase))
            clock.begin_step()
            taken = step()
            clock.end_step(0, taken)
        watch.see(0, taken)
        exchange.turn()
        if iteration % engine.recipe.logging.log_interval == 0:
            clock.take()
            slow_ranks(ranks, 1.0)

    def marked(iteration):
        with marks(engine.models, position):
            hooks = clock.attach(engine.models)
            seconds = timed(lambda: watched_step(iteration))
            for hook in hooks:
                hook.remove()
        return seconds

    without, watched = [], []
    for iteration in range(rounds + UNCOUNTED):
        if iteration % 2:
            without.append(timed(step))
            watched.append(marked(iteration))
        else:
            watched.append(marked(iteration))
            without.append(timed(step))
    return without[UNCOUNTED:], watched[UNCOUNTED:]


@contextmanager
def marks(models: list[torch.nn.Module], position: Position) -> Iterator[None]:
    """Mark the layers for a with-block; the product itself never takes its marks away."""
    from pretrain.model.layer import SerialLayer
    from pretrain.model.marks import mark

    hooks = [of_model for model in models for of_model in (model._forward_pre_hooks, model._forward_hooks)]
    before = [dict(of_model) for of_model in hooks]
    mark(models, position)
    try:
        yield
    finally:
        for of_model, were in zip(hooks, before, strict=True):
            of_model.clear()
            of_model.update(were)
        for model in models:
            for module in model.modules():
                if isinstance(module, SerialLayer):
                    module.marks = None


if __name__ == "__main__":
    run("watched_steps", __doc__, measure, rounds=10_000)
