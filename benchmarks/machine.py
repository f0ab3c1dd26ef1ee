"""Machine and versions of a result, and the folder of results."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_DISTRIBUTIONS = (
    *("torch", "megatron-core", "transformers", "tokenizers", "numpy", "deepspeed", "pretrain"),
    *("gigatoken", "orjson", "xxhash", "zstandard"),
    *("pretrain-cuda", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "apex"),
)


def describe(threads: int) -> dict[str, object]:
    """Return processor, threads, versions and date as plain values."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS if _version(name)},
    }


def keep(name: str, result: dict[str, object]) -> None:
    """Write a result to results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
