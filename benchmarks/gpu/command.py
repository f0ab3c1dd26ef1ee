"""Options, device and result of all GPU benchmarks. --tiny runs them on a CPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from benchmarks import machine
from pretrain.errors import BackendError
from pretrain.model.requests import kernel_requests
from pretrain.plugins.host import manager
from pretrain.plugins.host.members import require_device
from pretrain.plugins.negotiation.choosing import choose

if TYPE_CHECKING:
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the options that all have."""
    options = argparse.ArgumentParser(prog=name, description=description.splitlines()[0])
    results = options.add_mutually_exclusive_group()
    results.add_argument("--keep", action="store_true", help=f"write results/{name}.json")
    results.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # on the CPU, for tests only
    return options


def threads(*, tiny: bool) -> int:
    """Return the threads of a process."""
    return 2 if tiny else os.cpu_count() or 1


def plugins(*, tiny: bool) -> Plugins:
    """Return the cuda backend; where it has no device, say so in two lines and exit with 2."""
    try:
        found = manager.load("cpu" if tiny else "cuda")
        require_device(found)
    except BackendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    return found


def kernels(found: Plugins, recipe: Recipe, vocab_size: int) -> dict[str, str]:
    """Return kernel and provider of each operation of a recipe; nothing is built."""
    requests = kernel_requests(recipe, found.backend.device_type, vocab_size, found.backend.device_name())
    choices = choose(found, requests, recipe.kernels.chosen(), recipe.kernels.fallback)
    rows = [choice.row for choice in choices]
    return {row.operation: f"{row.kernel}, {row.provider}" for row in rows}


def report(name: str, arguments: argparse.Namespace, found: Plugins, measured: dict[str, object]) -> None:
    """Print a result with machine, device, versions and date, and keep it if that is asked."""
    described = machine.describe(threads(tiny=arguments.tiny))
    result = {**described, "device": dict(found.backend.describe()), **measured}
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep(name, result)
