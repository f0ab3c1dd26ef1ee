"""One training step of GPT-2 124M on the CPU: pretrain, Hugging Face and plain megatron-core.

    python -m benchmarks.training.train_step [--rounds 7] [--threads 2]

Sequence 1024, micro batch 1, no dropout, gradients clipped to 1, AdamW. Each system lives in a process of its own and
takes a step when it is told, in turn, so that a slow moment of the machine hits all of them; the ratios are taken round
by round. Hugging Face: GPT2LMHeadModel with SDPA and torch's fused AdamW, bf16 by autocast. megatron: GPTModel with the
local spec and the optimizer that megatron-core has as installed, on the CPU through the bridge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from typing import IO

from benchmarks import machine
from benchmarks.timing import spread
from benchmarks.training.setting import GPT2_124M, Setting

SYSTEMS = ("pretrain", "huggingface", "megatron")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--keep", action="store_true", help="write results/train_step.json")
    arguments = parser.parse_args()
    systems = arguments.systems.split(",")
    result = {**machine.describe(arguments.threads), "shape": GPT2_124M}
    for dtype in arguments.dtypes.split(","):
        result[dtype] = compare(systems, Setting(dtype, arguments.threads), arguments.rounds)
        print(json.dumps({dtype: result[dtype]}, indent=1))
    if arguments.keep:
        machine.keep("train_step", result)


def compare(systems: list[str], setting: Setting, rounds: int) -> dict[str, object]:
    """Return seconds per step of every system and the ratios of their speeds to the first one's, round by round."""
    workers = {name: Worker(name, setting) for name in systems}
    for worker in workers.values():
        worker.step(), worker.step()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    losses = {}
    for _ in range(rounds):
        for name, worker in workers.items():
            taken, losses[name] = worker.step()
            seconds[name].append(taken)
    for worker in workers.values():
        worker.close()
    result: dict[str, object] = {
        name: {
            "seconds": [round(value, 3) for value in values],
            "tokens_per_second": round(setting.tokens / statistics.median(values), 1),
            "last_loss": round(losses[name], 4),
        }
        for name, values in seconds.items()
    }
    for name in systems[1:]:
        ratios = [theirs / ours for theirs, ours in zip(seconds[name], seconds[systems[0]], strict=True)]
        result[f"speed over {name}"] = spread(ratios, 3)
    return result


class Died(SystemExit):
    """A system ended before its answer."""


class Worker:
    """A system in a process of its own.

    Attributes:
        about: what it says of itself, known after its first step.
    """

    def __init__(self, name: str, setting: Setting, errors: IO[str] | None = None) -> None:
        command = [sys.executable, "-m", f"benchmarks.training.systems.{name}", setting.to_json()]
        self.about: dict[str, object] = {}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=machine.ROOT
        )

    def step(self) -> tuple[float, float]:
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Died(f"{self.process.args} died") from None
        line = self.process.stdout.readline()
        if not line:
            raise Died(f"{self.process.args} died")
        answer = json.loads(line)
        self.about = answer["about"]
        return answer["seconds"], answer["loss"]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def serve(step, about: dict[str, object] | None = None) -> None:
    """Take a step for every line on standard input; `step` returns the loss. `about` describes the system."""
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss, "about": about or {}}), flush=True)


if __name__ == "__main__":
    main()
