"""Runs every CPU benchmark and keeps the results: `make bench`. Leave the machine alone meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("train_step", "bridge_cost", "startup", "cpu_kernels")

for name in BENCHMARKS:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--keep"], cwd=Path(__file__).parent.parent, check=True)
