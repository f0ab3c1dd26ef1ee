"""One data-parallel training step on two ranks: ZeRO-1 of the DeepSpeed engine over ZeRO-1 of the megatron engine.

    python -m benchmarks.zero.zero_step [--rounds 7] [--keep]

GPT-2 124M, sequences of 256 tokens, one a rank, one thread a rank, gloo. All systems of a group live at once, each in
processes of its own, and take a step in turn; the ratios are taken round by round. They start from the same weights and
must have the same losses. The result has the seconds of the slower rank, and the CPU seconds of all ranks'
threads together. Other work of the machine hardly changes the latter, and waiting does not count in them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

from benchmarks import machine
from benchmarks.timing import spread

SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "seq": 256, "vocab": 50257}
RANKS = 2
BASE = "megatron ZeRO-1"
GROUPS = (  # pairs: three systems at once do not fit into 24 GB
    (BASE, "ZeRO-1"),
    (BASE, "ZeRO-2"),
    (BASE, "ZeRO-3"),
    (BASE, "ZeRO-3, offload, torch Adam"),
)
CLOCKS = ("seconds", "cpu_seconds")
WARM_UP = 2
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--keep", action="store_true", help="write results/zero_step.json")
    arguments = parser.parse_args()
    result = {**machine.describe(threads=1), "shape": SHAPE, "ranks": RANKS, "load before": os.getloadavg()}
    for dtype in arguments.dtypes.split(","):
        result[dtype] = [compare(systems, dtype, arguments.rounds) for systems in GROUPS]
        print(json.dumps({dtype: result[dtype]}, indent=1), flush=True)
    result["load after"] = os.getloadavg()
    if arguments.keep:
        machine.keep("zero_step", result)


def compare(systems: tuple[str, ...], dtype: str, rounds: int) -> dict[str, object]:
    """Return the time per step of every system and their ratios to the first one's, round by round."""
    worlds = {name: World(name, dtype) for name in systems}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(WARM_UP + rounds):
        for name, world in worlds.items():
            taken[name].append(world.step())
    for world in worlds.values():
        world.close()
    losses = {name: [step["loss"] for step in steps] for name, steps in taken.items()}
    check(losses, dtype)
    result: dict[str, object] = {"losses": {name: [round(one, 6) for one in all_] for name, all_ in losses.items()}}
    for clock in CLOCKS:
        times = {name: [step[clock] for step in steps[WARM_UP:]] for name, steps in taken.items()}
        result[clock] = {name: spread(values) for name, values in times.items()}
        result[f"{clock} over {systems[0]}"] = {
            name: spread([its / base for its, base in zip(times[name], times[systems[0]], strict=True)])
            for name in systems[1:]
        }
    return result


def check(losses: dict[str, list[float]], dtype: str) -> None:
    """Stop if a system's losses are not those of the first one."""
    base, *others = losses
    for name in others:
        for its, expected in zip(losses[name], losses[base], strict=True):
            if abs(its - expected) > TOLERANCE[dtype] * expected:
                raise SystemExit(f"{dtype}: {name} has losses {losses[name]}, {base} {losses[base]}")


class World:
    """The ranks of a system, each in a process of its own."""

    def __init__(self, name: str, dtype: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(RANKS),
        }
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.zero.zero_rank", name, dtype, json.dumps(SHAPE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=machine.ROOT,
                env={**common, "RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]

    def step(self) -> dict[str, float]:
        """Let all ranks take a step; return the seconds of the slowest, the CPU seconds of all, and the mean loss."""
        for rank in self.ranks:
            rank.stdin.write("step\n")
            rank.stdin.flush()
        answers = [self._answer(rank) for rank in self.ranks]
        return {
            "seconds": max(one["seconds"] for one in answers),
            "cpu_seconds": sum(one["cpu_seconds"] for one in answers),
            "loss": statistics.mean(one["loss"] for one in answers),
        }

    def _answer(self, rank: subprocess.Popen) -> dict[str, float]:
        line = rank.stdout.readline()
        if not line:
            raise SystemExit(f"{rank.args} died")
        return json.loads(line)

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()


if __name__ == "__main__":
    main()
