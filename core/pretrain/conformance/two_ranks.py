"""Runs the checks that need two ranks, once for each backend."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
import torch.multiprocessing

from pretrain.conformance import examples
from pretrain.conformance.cases import run_with
from pretrain.conformance.pair_checks import CHECKS, COLLECTIVES, REQUESTS, DeclinedError, PairRank
from pretrain.conformance.subject import load_subject
from pretrain.machine import restored_variables
from pretrain.plugins.host.members import require_device, take_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from pretrain.conformance.pair_checks import Part
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import CollectivesRequest


RANKS = 2
SECONDS = 900


@dataclass(frozen=True, slots=True)
class RankPair:
    """Findings of two ranks."""

    failures: tuple[Mapping[str, str], ...]  # for each rank, "check, kernel" -> failure, "" if it passed
    end: str  # reason that the processes failed, "" if they did not

    @staticmethod
    def of(subject: Subject) -> RankPair:
        """Return the findings; skip the test where two ranks need two devices and there is one."""
        count = subject.plugins.backend.device_count()
        if count is not None and count < RANKS:
            pytest.skip(f"{RANKS} ranks need {RANKS} devices; there are {count}")
        return _run(subject.name)

    def require(self, check: str, kernel: Kernel) -> None:
        """Fail unless both ranks passed a check; skip where the kernel declined."""
        key = f"{check}, {kernel}"
        found = [failures.get(key, f"not reached. {self.end}") for failures in self.failures]
        declined = [failure.removeprefix("declines: ") for failure in found if failure.startswith("declines: ")]
        if declined:
            pytest.skip(f"{kernel} declines: {declined[0]}")
        wrong = [f"rank {rank}: {failure}" for rank, failure in enumerate(found) if failure]
        assert not wrong, "\n".join(wrong)


@lru_cache
def _run(name: str) -> RankPair:
    subject = load_subject(name)  # a plugin that cannot be imported is named before processes are started
    context = _context(subject)
    with tempfile.TemporaryDirectory(prefix="pretrain-conformance-") as folder:
        processes = [context.Process(target=main, args=(name, rank, RANKS, folder)) for rank in range(RANKS)]
        with restored_variables("OMP_NUM_THREADS"):
            os.environ["OMP_NUM_THREADS"] = "1"  # the children read it when they import torch
            for process in processes:
                process.start()
        end = _join(processes)
        results = [Path(folder, f"{rank}.json") for rank in range(RANKS)]
        failures = [json.loads(path.read_text()) if path.exists() else {} for path in results]
    return RankPair(tuple(failures), end)


def _context(subject: Subject) -> SpawnContext | ForkServerContext:
    """Return the context that starts ranks: on a CPU they are forked from one process that has imported torch."""
    methods = torch.multiprocessing.get_all_start_methods()
    if subject.plugins.backend.device_type != "cpu" or "forkserver" not in methods:
        return torch.multiprocessing.get_context("spawn")
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretrain.conformance.two_ranks"])
    return context


def _join(processes: Sequence[BaseProcess]) -> str:
    """Wait until all have ended or one has failed; end the others."""
    deadline = time.monotonic() + SECONDS
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.02)
    is_late = time.monotonic() >= deadline
    for process in processes:
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    if is_late:
        return f"The ranks were still busy after {SECONDS} s: do all of them make the same calls?"
    return "" if not any(codes) else f"The ranks ended with exit codes {codes}."


def main(name: str, number: int, count: int, folder: str) -> None:
    """Run every check for every kernel; failures are written to `<folder>/<number>.json` after each."""
    subject = load_subject(name)
    backend = subject.plugins.backend
    require_device(subject.plugins)  # a backend imports its library for torch when it is asked for availability
    rank = PairRank(subject=subject, number=number, device=take_device(subject.plugins, number))
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


def _outcome(part: Part, rank: PairRank, kernel: Kernel) -> str:
    try:
        part(rank, kernel)
    except DeclinedError as declined:
        return f"declines: {declined}"
    except Exception as error:  # noqa: BLE001  whatever a kernel raises is its finding
        return f"{type(error).__name__}: {error}"
    return ""


class TestCollectives:
    """Two processes, started by the kit."""

    tier = "device"
    operations = ("collectives",)

    @pytest.mark.parametrize("way", ["sync", "async"])
    @pytest.mark.parametrize("operation", COLLECTIVES)
    @run_with([examples.collectives()])
    def test_two_ranks(
        self, subject: Subject, kernel: Kernel, asked: CollectivesRequest, operation: str, way: str
    ) -> None:
        """The result is right after the call, or after its wait."""
        if operation.startswith("batched") and not subject.plugins.backend.point_to_point().batched:
            pytest.skip(f"{subject.plugins.label} sends messages one by one (Backend.point_to_point)")
        assert subject.takes(kernel, asked)
        RankPair.of(subject).require(f"{operation} {way}", kernel)
