"""Program of each of the two ranks."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from pretrain.conformance.ranks.own_rank import DeclinedError, Rank
from pretrain.conformance.ranks.pair_checks import CHECKS, REQUESTS
from pretrain.conformance.subject import load_subject
from pretrain.plugins.host.members import require_device, take_device

if TYPE_CHECKING:
    from pretrain.conformance.ranks.pair_checks import Part
    from pretrain.conformance.subject import Kernel


def main(name: str, number: int, count: int, folder: str) -> None:
    """Run every check for every kernel; failures are written to `<folder>/<number>.json` after each."""
    subject = load_subject(name)
    backend = subject.plugins.backend
    require_device(subject.plugins)  # a backend imports its library for torch when it is asked for availability
    rank = Rank(subject=subject, number=number, device=take_device(subject.plugins, number))
    rendezvous = f"file://{Path(folder, 'store')}"
    dist.init_process_group(
        backend.process_group, init_method=rendezvous, rank=number, world_size=count, timeout=timedelta(minutes=5)
    )
    found: dict[str, str] = {}
    for operation, checks in CHECKS.items():
        for kernel in subject.kernels(REQUESTS[operation]):
            for check, parts in checks.items():
                outcomes = [_outcome(part, rank, kernel) for part in parts]
                found[f"{check}, {kernel}"] = _first_failure(outcomes)
                Path(folder, f"{number}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _first_failure(outcomes: list[str]) -> str:
    """Return the first failure; that the kernel declines only where it declined every part."""
    declined = [outcome for outcome in outcomes if outcome.startswith("declines: ")]
    failed = [outcome for outcome in outcomes if outcome and outcome not in declined]
    if failed:
        return failed[0]
    return declined[0] if len(declined) == len(outcomes) else ""


def _outcome(part: Part, rank: Rank, kernel: Kernel) -> str:
    try:
        part(rank, kernel)
    except DeclinedError as declined:
        return f"declines: {declined}"
    except Exception as error:  # noqa: BLE001  whatever a kernel raises is its finding
        return f"{type(error).__name__}: {error}"
    return ""
