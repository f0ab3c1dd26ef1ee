"""Cost of the bridge in a training step: the number of look-ups by megatron-core, times the time of one.

    python -m benchmarks.training.bridge_cost [--keep]

megatron-core is compiled with its CUDA names redirected to one object, so the bridge's whole cost at run time is the
attribute look-ups on that object and the calls of what they return. Every look-up and call of a step of GPT-2 124M is
timed here; the clock's own cost is part of the sum, so the share is an upper bound.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time

import torch

from benchmarks import machine
from benchmarks.training.setting import Setting
from benchmarks.training.systems.pretrain import training

THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="write results/bridge_cost.json")
    arguments = parser.parse_args()
    spent = {"seconds": 0.0, "names": 0}
    observe(spent)
    torch.set_num_threads(THREADS)
    setting = Setting("fp32", THREADS)
    step = training(setting, setting.recipe())
    step()
    shares, names = [], []
    for _ in range(5):
        spent.update(seconds=0.0, names=0)
        start = time.perf_counter()
        step()
        shares.append(spent["seconds"] / (time.perf_counter() - start))
        names.append(spent["names"])
    result = {
        **machine.describe(THREADS),
        "look-ups in a step": statistics.median(names),
        "share of the step": statistics.median(shares),
    }
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("bridge_cost", result)


def observe(spent: dict) -> None:
    """Time every look-up on the bridge's object, and every call of a function that it returns."""
    from pretrain.bridge.megatron.names import DeviceNames

    look_up = object.__getattribute__

    def timed(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent["seconds"] += time.perf_counter() - start

        return call

    def observed(self, name):
        start = time.perf_counter()
        value = look_up(self, name)
        spent["seconds"] += time.perf_counter() - start
        spent["names"] += 1
        plain = callable(value) and not isinstance(value, type)
        return timed(value) if plain else value

    DeviceNames.__getattribute__ = observed


if __name__ == "__main__":
    main()
