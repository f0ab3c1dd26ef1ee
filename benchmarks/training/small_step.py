"""One training step of nanoGPT's small model on the CPU, which is mostly launches of small operations.

    python -m benchmarks.training.small_step [--rounds 200] [--threads 2] [--keep]

4 layers of 128, 12 sequences of 64, fp32, as in nanoGPT's README for a CPU; in turn with the same model in plain torch,
see systems/eager.py. Both pad the 65 characters to 128.
"""

from __future__ import annotations

import argparse
import json

from benchmarks import machine
from benchmarks.training.setting import Setting
from benchmarks.training.train_step import compare

SHAPE = {"layers": 4, "hidden": 128, "heads": 4, "seq": 64, "vocab": 65}
SAMPLES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="write results/small_step.json")
    arguments = parser.parse_args()
    setting = Setting("fp32", arguments.threads, shape=tuple(SHAPE.items()), micro_batch_size=SAMPLES)
    compared = compare(["pretrain", "eager"], setting, arguments.rounds)
    seconds = {name: compared[name].pop("seconds") for name in ("pretrain", "eager")}
    least = {name: round(1000 * min(values), 2) for name, values in seconds.items()}
    ratio = compared["speed over eager"]["median"]
    result = {
        **machine.describe(arguments.threads),
        "shape": SHAPE,
        "samples": SAMPLES,
        "rounds": arguments.rounds,
        **{name: compared[name] for name in seconds},
        "least milliseconds of a step": least,
        "speed over eager": {"median": ratio, "of the least": round(least["eager"] / least["pretrain"], 3)},
    }
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("small_step", result)


if __name__ == "__main__":
    main()
