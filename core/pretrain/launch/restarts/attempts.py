"""Attempts of a run: each that fails is judged, and perhaps followed by another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pretrain.launch.processes.stop_signals import stop_signals_exit
from pretrain.launch.restarts.restarts import with_remark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts.restarts import Restarts, Verdict


def run_attempts(attempt: Callable[[], Failure | None], restarts: Restarts) -> Failure | None:
    """Call `attempt` until it does not fail, or its failure is not followed by a restart.

    Returns:
        the last failure, or why the last attempt has stopped, with the reason that there is no restart; None if the
        training is complete.

    Raises:
        SystemExit: a signal asked the run to end; 128 + its number.
        PretrainError: of an attempt.
    """
    with stop_signals_exit():
        while (failure := attempt()) is not None:
            verdict = restarts.judge(failure)
            if verdict.wait is None:
                break
            announce(failure, verdict)
            time.sleep(verdict.wait)
        if failure is None or failure.stopped:
            show_end(restarts)
    return failure and with_remark(failure, verdict)


def announce(failure: Failure | None, verdict: Verdict) -> None:
    """Show a failure, which may be known to another node alone, and the restart that follows it."""
    click.echo(f"{failure}\n{verdict.text}" if failure else verdict.text, err=True)


def show_end(restarts: Restarts) -> None:
    """Show how many restarts a run has had, if any."""
    if summary := restarts.summary():
        click.echo(summary, err=True)
