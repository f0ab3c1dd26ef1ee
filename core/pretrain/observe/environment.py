"""environment.json: what a run ran on."""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.backend import Backend

FILE = "environment.json"
COMMAND = "PRETRAIN_COMMAND"
"""Environment variable in which the launcher tells its ranks what the user has typed."""

_DISTRIBUTIONS = ("pretrain", "torch", "megatron-core", "deepspeed", "numpy", "tokenizers")
_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "MASTER_", "PRETRAIN_"),
    *("CUDA_", "NCCL_", "GLOO_", "ASCEND_", "HCCL_"),
)
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_JOB_ID")
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def describe_environment(
    *,
    backend: Backend,
    provider: str,
    devices: Sequence[str],
    kernels: Mapping[str, object],
    layout: Mapping[str, object],
    started: float,
) -> dict[str, Any]:
    """Return what environment.json holds, as plain JSON values.

    Args:
        backend: the device plugin.
        provider: the distribution that brings it, with its version.
        devices: the name of every rank's device, in the order of ranks.
        kernels: the kernel table (`KernelTable.to_json`).
        layout: sizes of the parallel groups.
        started: seconds since the epoch.
    """
    return {
        "started": datetime.fromtimestamp(started).astimezone().isoformat(timespec="seconds"),
        "command": os.environ.get(COMMAND) or shlex.join(sys.argv),
        "directory": os.getcwd(),  # noqa: PTH109  a string is what is wanted
        "git_commit": git_commit(),
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "versions": _versions(),
        "backend": {"name": backend.name, "provider": provider, **backend.describe()},
        "devices": list(devices),
        "layout": dict(layout),
        "kernels": dict(kernels),
        "variables": relevant_variables(os.environ),
    }


def write_environment(run_dir: Path, environment: Mapping[str, Any]) -> None:
    """Write RUN/environment.json, whole or not at all; called on rank 0."""
    run_dir.mkdir(parents=True, exist_ok=True)
    temporary = run_dir / f"{FILE}.tmp"
    temporary.write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")
    temporary.replace(run_dir / FILE)


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries of a training read; never those whose name speaks of a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not any(word in name for word in _SECRET)
    }


def git_commit() -> str | None:
    """Return the commit of the working directory, with "-dirty" if tracked files differ from it; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
