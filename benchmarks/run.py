"""Run every CPU benchmark and keep the results: `make bench`. Run nothing else meanwhile.

At the end the tables of docs/zero.md are written again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = (
    *(
        "training.train_step",
        "training.modern_step",
        "training.small_step",
        "training.document_attention",
        "training.bridge_cost",
        "training.startup",
        "training.startup_weights",
    ),
    *("training.cpu_kernels", "zero.zero_step", "zero.zero_memory"),
    *("data.data_index", "data.data_build", "data.data_loading", "training.checkpoint_checksums"),
    *(
        "training.async_save",
        "training.safeguards",
        "training.hang_report",
        "training.watched_steps",
        "checkpoint.convert",
    ),
)

ROOT = Path(__file__).parent.parent

for name in BENCHMARKS:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--keep"], cwd=ROOT, check=True)
subprocess.run([sys.executable, "-m", "benchmarks.zero.zero_tables"], cwd=ROOT, check=True)
