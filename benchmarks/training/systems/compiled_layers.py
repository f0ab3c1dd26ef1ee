"""This project with its layers compiled: kernels.compile: layer."""

from __future__ import annotations

import sys

sys.argv.append("compile=layer")

import benchmarks.training.systems.pretrain  # noqa: E402, F401  reads what was asked for, and serves
