"""Memory of each rank at ZeRO stages 0 to 3, against the count of the ZeRO paper.

    python -m benchmarks.zero.zero_memory [--keep]

A GPT whose parameters weigh far more than its activations takes two steps on every system; the second is measured, by
what torch's allocator gives (see zero_allocations), in bytes per parameter. With sizes "small" everything that is
communicated or stepped at a time is as large as the largest weight, so that the model's states are nearly all of the
memory; "default" leaves DeepSpeed's sizes. The resident set is reported too: it includes freed memory, and memory
that torch does not allocate.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import socket
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.zero.zero_theory import theory

SHAPE = {"layers": 16, "hidden": 768, "heads": 12, "seq": 32, "vocab": 3072}
LARGEST_WEIGHT = 4 * SHAPE["hidden"] ** 2
STAGES = ("ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3")
SYSTEMS = ("megatron", "megatron ZeRO-1", *STAGES)
SMALL = {
    "ZeRO-1": ("reduce_bucket_size",),
    "ZeRO-2": ("reduce_bucket_size",),
    "ZeRO-3": (
        "reduce_bucket_size",
        "sub_group_size",
        "stage3_prefetch_bucket_size",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
    ),
}
PARTS = ("build", "forward-backward", "optimizer")


@dataclass(frozen=True)
class Case:
    """One training: `ranks` processes, sizes "small" or "default"."""

    system: str
    dtype: str
    ranks: int
    sizes: str = "small"

    @property
    def name(self) -> str:
        return f"{self.system}, {self.dtype}, {self.ranks} ranks, {self.sizes} sizes"

    def options(self) -> tuple[str, ...]:
        """Return the overrides that make the sizes small."""
        if self.sizes == "default" or (self.system, self.dtype) == ("ZeRO-1", "bf16"):  # whose optimizer has no buckets
            return ()
        keys = SMALL.get(self.system.partition(",")[0], ())
        return tuple(f"engine.zero.{key}={LARGEST_WEIGHT}" for key in keys)


CASES = (
    *(Case(system, dtype, ranks) for dtype in ("fp32", "bf16") for ranks in (2, 4) for system in SYSTEMS),
    *(Case(system, dtype, 2, "default") for dtype in ("fp32", "bf16") for system in STAGES[1:]),
    Case("ZeRO-3, offload, torch Adam", "bf16", 2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--keep", action="store_true", help="write results/zero_memory.json")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.zero.zero_rank"])
    result = {
        **machine.describe(threads=1),
        "load before": os.getloadavg(),
        "shape": SHAPE,
        "unit": "bytes per parameter, of the rank with most",
        "cases": [],
    }
    for case in CASES:
        if arguments.only in case.name:
            measured = measure(case, processes)
            result["parameters"] = measured.pop("parameters")
            result["cases"].append({**vars(case), **measured})
            print(json.dumps(result["cases"][-1]), flush=True)
    if arguments.keep:
        machine.keep("zero_memory", result)


def measure(case: Case, processes) -> dict[str, object]:
    """Return the memory of a case's ranks, in bytes per parameter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = processes.Queue()
    ranks = [processes.Process(target=train, args=(case, rank, port, answers)) for rank in range(case.ranks)]
    for rank in ranks:
        rank.start()
    seen = [answers.get(timeout=300) for _ in ranks]
    for rank in ranks:
        rank.join()
    parameters = seen[0]["parameters"]
    most = {key: round(max(one[key] for one in seen) / parameters, 2) for key in seen[0] if key != "parameters"}
    return {"parameters": parameters, **most, "theory": theory(case.system, case.dtype, case.ranks)}


def train(case: Case, rank: int, port: int, answers) -> None:
    """Train one rank and put its memory into `answers`."""
    from benchmarks.zero.zero_allocations import Allocations
    from benchmarks.zero.zero_rank import PLUGINS, build, groups

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(case.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    resident = PLUGINS.backend.memory(reset_peak=True).allocated
    with Allocations() as allocations:
        with allocations.phase("build"):
            engine, batch = build(case.system, case.dtype, SHAPE, case.options())
        engine.train_step(iter([batch]), 1)
        with allocations.phase("step"):
            loss = engine.train_step(iter([batch]), 1, allocations).loss
            gc.collect()
    answers.put(
        {
            "parameters": count(engine),
            **{f"peak of {part}": allocations.peak(part) for part in PARTS},
            "peak": allocations.peak("step"),
            "between steps": allocations.after("step"),
            "peak of resident set": PLUGINS.backend.memory().peak - resident,
        }
    )
    assert loss.isfinite()
    groups.leave()


def count(engine) -> int:
    """Return the parameters of the model; ZeRO-3 leaves each empty between its uses, with its size beside."""
    (model,) = [engine.model] if hasattr(engine, "model") else engine.chunks
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


if __name__ == "__main__":
    main()
