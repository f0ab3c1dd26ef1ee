"""Runs every CPU benchmark and keeps the results: `make bench`. Leave the machine alone meanwhile.

At the end the tables of docs/zero.md are made anew.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = (
    *("train_step", "bridge_cost", "startup", "startup_weights", "cpu_kernels", "zero_step", "zero_memory"),
    *("data_index", "data_build", "data_loading", "checkpoint_checksums"),
)

ROOT = Path(__file__).parent.parent

for name in BENCHMARKS:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--keep"], cwd=ROOT, check=True)
subprocess.run([sys.executable, "-m", "benchmarks.zero_tables"], cwd=ROOT, check=True)
