"""Random kills of trainings on two ranks: what is lost, and that nothing else is.

    PYTHONPATH=tests python -m benchmarks.reliability.random_kills [--kills 200] [--seed 1] [--folder PATH] [--keep]

Each training has `--max-restarts`. One after the other, random processes of it get a SIGKILL at random moments: rank 0,
rank 1, the launcher, or all of them at once; while it starts, trains, saves, evaluates or restarts. Where the launcher
is killed, or gives up because two failures in a row came without progress, the same command is given again, as a batch
system does. After some kills a training is left alone until its end, and must then equal the undisturbed one in each
loss, norm and evaluation, bit for bit, have all checkpoints, intact, and leave no process and no file behind; there may
be no more restarts and commands than kills, no more repeated steps than they cost, and no failure of another cause. One
that does not ends this program with exit code 1; its folder stays.

`repeated_steps` are logged iterations that were done more than once. With --keep the part of a seed is added to
results/random_kills.json: parts can be run one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.reliability.killed_training import KilledTraining
from chaos.tiny_training import TinyTraining
from pretrain.launch.processes.supervision import stop_signals_exit

if TYPE_CHECKING:
    from benchmarks.reliability.killed_training import Result

NAME = "random_kills"
RANKS, MOST_KILLS, RESTARTS = 2, 20, 1000
COUNTED = ("trainings", "kills", "restarts", "given_again", "repeated_steps", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to train; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help=f"add this part to results/{NAME}.json")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="random-kills-", dir=arguments.folder))
    folder = folder.absolute()
    try:
        with stop_signals_exit():
            training = TinyTraining(folder=folder, backend="cpu", nproc=RANKS, restarts=RESTARTS)
            training.prepare()
            part = {"seed": arguments.seed, **run(training, arguments.kills, random.Random(arguments.seed))}
    except ProblemsError as found:
        print(found, file=sys.stderr)
        raise SystemExit(1) from None
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    print(json.dumps(part, indent=1))
    if arguments.keep:
        keep(part)


class ProblemsError(Exception):
    """A training did not come through as it must."""


def run(training: TinyTraining, kills: int, draw: random.Random) -> dict[str, object]:
    """Kill until the number is reached; return the counts."""
    begun = time.monotonic()
    undisturbed = KilledTraining(training, "undisturbed", draw).run(kills=0)
    require(undisturbed, undisturbed)
    print(f"undisturbed: {undisturbed.seconds:.1f} s, first iteration after {undisturbed.starting:.1f} s", flush=True)
    results: list[Result] = []
    while (left := kills - sum(len(result.kills) for result in results)) > 0:
        name = f"training-{len(results) + 1}"
        planned = min(left, draw.randint(MOST_KILLS // 2, MOST_KILLS))
        result = KilledTraining(training, name, draw, starting=undisturbed.starting).run(kills=planned)
        require(result, undisturbed)
        results.append(result)
        shutil.rmtree(training.folder / name)
        print(f"{name}: {result.line()}", flush=True)
    return {
        "kills": sum(len(result.kills) for result in results),
        "trainings": len(results),
        "restarts": sum(result.restarts for result in results),
        "given_again": sum(result.given_again for result in results),
        "repeated_steps": sum(result.repeated for result in results),
        "steps_of_a_training": len(undisturbed.steps),
        "save_interval": undisturbed.save_interval,
        "seconds_of_the_undisturbed": round(undisturbed.seconds, 1),
        "seconds": round(time.monotonic() - begun),
        "by_phase": dict(Counter(kill.phase for result in results for kill in result.kills)),
        "by_target": dict(Counter(kill.target for result in results for kill in result.kills)),
        "equal_bit_for_bit": True,  # otherwise this program has ended
        "lost_checkpoints": 0,
        "left_processes": 0,
        "left_files": 0,
    }


def require(result: Result, undisturbed: Result) -> None:
    problems = result.problems(undisturbed)
    if problems:
        raise ProblemsError("\n".join([f"{result.folder}:", *problems]))


def keep(part: dict[str, object]) -> None:
    """Add a part to the result, in place of one of the same seed."""
    file = machine.RESULTS / f"{NAME}.json"
    parts = json.loads(file.read_text())["parts"] if file.exists() else []
    parts = [*(each for each in parts if each["seed"] != part["seed"]), part]
    total = {name: sum(each[name] for each in parts) for name in COUNTED}
    machine.keep(NAME, {**machine.describe(threads=1), "ranks": RANKS, "total": total, "parts": parts})


if __name__ == "__main__":
    main()
