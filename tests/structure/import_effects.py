"""Find changes of the process by importing a package's modules; printed as JSON: module -> its changes.

python import_effects.py PACKAGE [--bridge]

What the modules import from elsewhere is imported before, so that every change is their own doing. With --bridge those
of pretrain.bridge and pretrain.cpu that do without come first; the bridge is installed then, as a training does, for
all others.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE_THE_BRIDGE = ("pretrain.bridge", "pretrain.cpu")
AFTER_THE_BRIDGE = "megatron"
OF_AN_EXTRA = {"pretrain.training.harness": "lm_eval"}
"""Modules that import the library of an extra, which need not be installed."""


def main(package: str, *, bridge: bool) -> None:
    """Print the effects."""
    modules = {
        name: path
        for name, path in modules_of(package).items()
        if name not in OF_AN_EXTRA or importlib.util.find_spec(OF_AN_EXTRA[name]) is not None
    }
    elsewhere = {name: None for path in modules.values() for name in imports_from_elsewhere(path, package)}
    load([name for name in elsewhere if not name.startswith(AFTER_THE_BRIDGE)])
    effects: dict[str, list[str]] = {}
    if bridge:
        for module, path in modules.items():
            needs_it = any(name.startswith(AFTER_THE_BRIDGE) for name in imports_from_elsewhere(path, package))
            if module.startswith(BEFORE_THE_BRIDGE) and not needs_it:
                effects[module] = effects_of(module)
        importlib.import_module("pretrain.bridge.megatron").install(
            importlib.import_module("pretrain.cpu.backend").CpuBackend()
        )
    load(list(elsewhere))
    for module in modules:
        if module not in effects:
            effects[module] = effects_of(module)
    print(json.dumps({module: changes for module, changes in effects.items() if changes}))


def modules_of(package: str) -> dict[str, Path]:
    """Return every module of the package with its file, without importing any."""
    spec = importlib.util.find_spec(package)
    (folder,) = map(Path, spec.submodule_search_locations)  # type: ignore[union-attr,arg-type]
    names = {path: path.relative_to(folder.parent).with_suffix("").parts for path in sorted(folder.rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


def imports_from_elsewhere(path: Path, package: str) -> Iterator[str]:
    """Yield what a module imports at its top level, as "module" or "module:name"."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}:{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in found if name.partition(":")[0].partition(".")[0] != package)


def load(names: list[str]) -> None:
    """Import modules, and submodules that are imported by `from`."""
    for name in names:
        module, _, member = name.partition(":")
        if member and not hasattr(importlib.import_module(module), member):
            importlib.import_module(f"{module}.{member}")
        importlib.import_module(module)


def effects_of(module: str) -> list[str]:
    """Import one module and name what is different afterwards."""
    out, err = io.StringIO(), io.StringIO()
    before = state()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        importlib.import_module(module)
    after = state()
    changes = [name for name, value in before.items() if after[name] != value]
    return changes + (["output"] if out.getvalue() or err.getvalue() else [])


def state() -> dict[str, Any]:
    """Return what an import must leave alone; files are those of the working directory."""
    return {
        "environment": dict(os.environ),
        "torch.distributed": torch.distributed.is_initialized(),
        "warning filters": list(warnings.filters),
        "files": sorted(str(path) for path in Path.cwd().rglob("*")),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "log handlers": list(logging.getLogger().handlers),
        "threads": threading.active_count(),
        "sys.path": list(sys.path),
        "sys.meta_path": list(sys.meta_path),
        "torch's settings": (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.backends.mkldnn.enabled,
        ),
        "random numbers": torch.get_rng_state().numpy().tobytes(),
    }


if __name__ == "__main__":
    main(sys.argv[1], bridge="--bridge" in sys.argv)
