"""Start of two rank processes, once for each backend, and their findings."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch.multiprocessing

from pretrain.conformance.ranks.pair_program import main
from pretrain.conformance.subject import load_subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from pretrain.conformance.subject import Kernel, Subject

RANKS = 2
SECONDS = 900


@dataclass(frozen=True, slots=True)
class RankPair:
    """Findings of two ranks.

    Attributes:
        failures: for each rank, "check, kernel" -> failure, "" if it passed.
        end: reason that the processes failed, "" if they did not.
    """

    failures: tuple[Mapping[str, str], ...]
    end: str

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
        previous = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # the children read it when they import torch
        try:
            for process in processes:
                process.start()
        finally:
            if previous is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = previous
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
    context.set_forkserver_preload(["pretrain.conformance.ranks.pair_program"])
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
