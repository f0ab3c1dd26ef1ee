"""Outcome of the checks between ranks, on one rank."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pretrain.tools.doctor.finding import Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of the checks between ranks, on one rank.

    Attributes:
        findings: of all ranks and between them, on the rank that reports; empty on the others.
        reports: whether this rank shows them: rank 0, or the lowest rank that is there if rank 0 is silent.
        stuck: the process must end by `leave`: a thread waits in a collective or a device call that never ends, for
            which the interpreter would wait at its exit; or there are several ranks, and threads in clients of a store
            abort the process at the interpreter's exit.
    """

    findings: tuple[Finding, ...] = ()
    reports: bool = False
    stuck: bool = False

    def leave(self, code: int) -> NoReturn:
        """End this process at once, after flushing its output: no destructor waits for a stuck thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
