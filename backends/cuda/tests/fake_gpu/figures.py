"""Figures that no formula gives, in figures.json: peak bytes of every job's storages, and the waits of DeepSpeed.

    cd backends/cuda/tests && python -m fake_gpu.figures

writes them again, which takes some minutes; names of jobs after it: only theirs.
A change belongs into the commit that causes it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from fake_gpu.jobs import DEEPSPEED, JOBS
from kit.server import Server

FILE = Path(__file__).with_name("figures.json")
TOLERANCE = 0.1
RENEW = "cd backends/cuda/tests && python -m fake_gpu.figures"


def read() -> dict[str, dict[str, int]]:
    """Return job -> figure -> value."""
    return json.loads(FILE.read_text())


def of(name: str, answer: dict) -> dict[str, int]:
    """Return the figures of a job from its report."""
    figures = {"peak_bytes": max(step["peak"] for step in answer["steps"])}
    if name in DEEPSPEED:
        figures["waits"] = sum(answer["steps"][-1]["waits"].values())
    return figures


def main(names: list[str]) -> int:
    """Run the jobs of these names, or all without names; each figure is written as soon as it is known."""
    with tempfile.TemporaryDirectory() as cache:
        server = Server("fake_gpu.rank", Path(cache))
        for name in names or JOBS:
            answer = server.run(JOBS[name])
            if "error" in answer:
                sys.stderr.write(f"{name}: {answer['error']}\n{answer.get('traceback', '')}\n")
                return 1
            figures = (read() if FILE.exists() else {}) | {name: of(name, answer)}
            FILE.write_text(json.dumps({job: figures[job] for job in JOBS if job in figures}, indent=1) + "\n")
            sys.stdout.write(f"{name}: {figures[name]}, {answer['seconds']:.0f} s\n")
            sys.stdout.flush()
        server.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
