"""The compact GPT-2 of `compiled` as nanoGPT trains it on a CPU: not compiled, PyTorch's AdamW not fused."""

from __future__ import annotations

import sys

sys.argv.append("eager")

import benchmarks.training.systems.compiled  # noqa: E402, F401  reads what was asked for, and serves
