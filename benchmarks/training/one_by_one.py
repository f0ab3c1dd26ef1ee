"""Measure systems one after the other, each in a process of its own with all of the device's memory.

A system that runs out of memory is reported as such; the others are measured all the same.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import TYPE_CHECKING

from benchmarks.training.train_step import Died, Worker

if TYPE_CHECKING:
    from benchmarks.training.setting import Setting

OUT_OF_MEMORY = "OutOfMemoryError"
"""In the traceback of torch's error."""
SHOWN = 5
"""Last lines of the standard error that are kept of a system that failed."""


def measure(systems: list[str], setting: Setting, rounds: int) -> dict[str, dict[str, object]]:
    """Return the result of every system, and print each as soon as it is known."""
    found = {}
    for name in systems:
        found[name] = steps_of(name, setting, rounds)
        print(name, found[name], flush=True)
    return found


def steps_of(name: str, setting: Setting, rounds: int) -> dict[str, object]:
    """Return the seconds of a system's steps after two that are not counted, or why there are none."""
    with tempfile.TemporaryFile("w+") as errors:
        worker = Worker(name, setting, errors)
        try:
            worker.step(), worker.step()
            taken = [worker.step() for _ in range(rounds)]
        except Died:
            worker.close()
            errors.seek(0)
            return reason(errors.read().splitlines())
        worker.close()
    seconds = [one for one, _ in taken]
    return {
        "seconds": [round(one, 4) for one in seconds],
        "tokens_per_second": round(setting.tokens / statistics.median(seconds), 1),
        "last_loss": round(taken[-1][1], 4),
        **worker.about,
    }


def reason(said: list[str]) -> dict[str, object]:
    """Return why a system died, from what it wrote to its standard error."""
    memory = [line.strip() for line in said if OUT_OF_MEMORY in line]
    return {"out_of_memory": memory[-1]} if memory else {"failed": said[-SHOWN:]}


def ratios(found: dict[str, dict[str, object]], first: str) -> dict[str, object]:
    """Return the speed of the first over the others', by median steps; for a weak rival the reason without a ratio."""
    result: dict[str, object] = {}
    for name, other in found.items():
        if name == first or "seconds" not in other or "seconds" not in found[first]:
            continue
        if "no_rival" in other:
            result[f"speed over {name}"] = other["no_rival"]
        else:
            theirs, ours = (statistics.median(system["seconds"]) for system in (other, found[first]))
            result[f"speed over {name}"] = round(theirs / ours, 3)
    return result
