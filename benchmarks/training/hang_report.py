"""Cost of what a hang report needs, in a step of the quickstart: the marks in the model, and torch's recorder.

    python -m benchmarks.training.hang_report [--rounds 40] [--keep]

One rank on the CPU, with one thread. `seconds_of_calls` are measured alone, many times: the marks of one layer,
forward and backward, on a tensor of one element; a phase of the step; and one all-reduce with and without the recorder,
each in a process of its own. `share_of_a_step` divides what comes to one step by the step's median. Steps with the
layers' marks and without are also taken in turn; their difference is smaller than the machine's noise.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import torch

from benchmarks.timing import spread, timed
from benchmarks.training.quickstart_steps import each, micro_batches, quickstart_engine, run

PHASES = 4
"""Of a step: data, forward and backward, optimizer, and the whole."""
COLLECTIVES = """
import sys, timeit, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1)
print(min(timeit.repeat(lambda: dist.all_reduce(x), number=2000, repeat=9)) / 2000)
"""


def measure(rounds: int) -> dict[str, object]:
    """Measure with the quickstart's engine."""
    with quickstart_engine() as engine:
        return measure_with(engine, rounds)


def measure_with(engine, rounds: int) -> dict[str, object]:
    """Return seconds of steps and calls, and the share of a step."""
    from pretrain.model.layer import SerialLayer
    from pretrain.model.marks import mark
    from pretrain.report.hang.position import Position, shared_memory

    batches = micro_batches(engine.recipe)
    with shared_memory(None) as (memory, _):
        position = Position(memory)  # the memory lives on with it
    mark(engine.models, position)
    layers = [module for model in engine.models for module in model.modules() if isinstance(module, SerialLayer)]
    marks = [layer.marks for layer in layers]

    def step():
        return engine.train_step(iter(batches), len(batches))

    taken = [[], []]
    for number in range(rounds + 2):
        if number == 2:  # two are not counted
            taken = [[], []]
        for with_marks in (number % 2, 1 - number % 2):
            for layer, of_layer in zip(layers, marks, strict=True):
                layer.marks = of_layer if with_marks else None
            taken[with_marks].append(timed(step))
    calls = {
        "marks of a layer": of_a_layer(marks[1]),
        "a phase": each(lambda: position.leave(position.enter("data"))),
        "an all-reduce": all_reduce("0"),
        "an all-reduce that is recorded": all_reduce("2000"),
    }
    moves = (len(layers) + 2) * len(batches)  # two for the embedding and the output layer
    in_a_step = moves * calls["marks of a layer"] + PHASES * calls["a phase"]
    in_a_step += collectives_of(step) * max(0.0, calls["an all-reduce that is recorded"] - calls["an all-reduce"])
    return {
        "collectives_of_a_step": collectives_of(step),
        "seconds_of_calls": {name: round(value, 8) for name, value in calls.items()},
        "seconds_of_a_step": {"without": spread(taken[0]), "with": spread(taken[1])},
        "share_of_a_step": round(in_a_step / statistics.median(taken[0]), 6),
    }


def of_a_layer(marks) -> float:
    """Return the seconds of a layer's marks, forward and backward, beside those of the same tensors without them."""
    leaf = torch.ones(1, requires_grad=True)

    def marked():
        marks.begin(leaf)
        output = leaf * 1
        marks.end(output)
        output.backward()

    def plain():
        output = leaf * 1
        output.backward()

    return max(0.0, each(marked) - each(plain))


def collectives_of(step) -> int:
    """Return the collectives of a step of one rank."""
    from pretrain.plugins.collective_record import of_flight_recorder

    before = max((each.called for each in of_flight_recorder()), default=0.0)
    step()
    return sum(each.called > before for each in of_flight_recorder())


def all_reduce(entries: str) -> float:
    """Return the seconds of an all-reduce of one element by one rank, with a recorder of so many entries."""
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": entries, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COLLECTIVES], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    run("hang_report", __doc__, measure)
