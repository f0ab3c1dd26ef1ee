"""Describes a run's environment, and writes environment.json."""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.errors import RunError
from pretrain.plugins.installed import version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.backend import Backend

FILE = "environment.json"
COMMAND = "PRETRAIN_COMMAND"
"""Environment variable with the user's command line, which the launcher passes to its ranks."""

_DISTRIBUTIONS = ("pretrain", "torch", "megatron-core", "deepspeed", "numpy", "tokenizers")
_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "MASTER_", "PRETRAIN_"),
    *("CUDA_", "NCCL_", "GLOO_", "ASCEND_", "HCCL_"),
)
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_JOB_ID")
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


@dataclass(frozen=True, slots=True)
class Begin:
    """Time of a start or resumption, in seconds since the epoch, and the last iteration before it."""

    started: float
    after: int


def describe_environment(
    *,
    backend: Backend,
    provider: str,
    devices: Sequence[str],
    kernels: Mapping[str, object],
    layout: Mapping[str, object],
    begin: Begin,
) -> dict[str, Any]:
    """Return the content of environment.json as plain JSON values; `devices` are in the order of ranks."""
    return {
        "started": datetime.fromtimestamp(begin.started).astimezone().isoformat(timespec="seconds"),
        "started_after": begin.after,
        "command": os.environ.get(COMMAND) or shlex.join(sys.argv),
        "directory": os.getcwd(),  # noqa: PTH109  a string is needed
        "git_commit": git_commit(),
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), **_versions()},
        "backend": {"name": backend.name, "provider": provider, **backend.describe()},
        "devices": list(devices),
        "layout": dict(layout),
        "kernels": dict(kernels),
        "variables": relevant_variables(os.environ),
    }


def write_environment(run_dir: Path, environment: Mapping[str, Any]) -> None:
    """Write RUN/environment.json atomically; called on rank 0."""
    with replacing(run_dir / FILE, error=RunError) as stream:
        stream.write(json.dumps(environment, indent=2).encode() + b"\n")


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries of a training read, except those whose name suggests a secret."""
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
    return {name: installed for name in _DISTRIBUTIONS if (installed := version(name))}
