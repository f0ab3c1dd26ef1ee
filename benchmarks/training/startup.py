"""Seconds that a user waits: `pretrain --help`, a recipe error, and the first step of the quickstart.

    python -m benchmarks.training.startup [--rounds 5] [--keep]

Whole processes, started one after the other; the rival of `--help` is `torchrun --help`, measured in the same rounds.
The first step is taken from the run's own metrics: the data is built before, and logged after one iteration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.timing import spread

BIN = Path(sys.executable).parent
SMALL = ["--set", "data.num_workers=0", "--set", "logging.log_interval=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write results/startup.json")
    arguments = parser.parse_args()
    quickstart = ["--backend", "cpu", "recipes/quickstart.yml"]
    first_step(quickstart)  # builds the corpus, fills caches
    commands = {
        "pretrain --help": lambda: wall([BIN / "pretrain", "--help"]),
        "torchrun --help": lambda: wall([BIN / "torchrun", "--help"]),
        "recipe error": lambda: wall([BIN / "pretrain", *quickstart, "--set", "model.num_layer=1"], code=2),
        "first step of quickstart": lambda: first_step(quickstart),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, measure in commands.items():
            seconds[name].append(measure())
    result = {
        **machine.describe(threads=2),
        **{name: spread(values, 3) for name, values in seconds.items()},
    }
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("startup", result)


def wall(command: list, code: int = 0) -> float:
    """Return the seconds that a process takes."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != code:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr.decode()}")
    return seconds


def first_step(recipe: list[str]) -> float:
    """Return the seconds from the command to the line of metrics that the first step writes."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [BIN / "pretrain", *recipe, "--run-dir", run_dir, *SMALL]
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=machine.ROOT, stdout=subprocess.DEVNULL)
        metrics = run_dir / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"{command} ended with {process.returncode}")
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        process.kill()
        process.wait()
    return seconds


if __name__ == "__main__":
    main()
