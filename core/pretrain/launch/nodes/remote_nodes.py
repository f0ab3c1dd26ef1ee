"""Nodes of a hostfile from the starting process: a launcher program and a rendezvous."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from pretrain.exit_codes import WELL, of_signal
from pretrain.launch.nodes.joining import LINGERING
from pretrain.launch.nodes.launcher_member import LOSS_TIMEOUT
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.processes.signals import REPORT_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.launch.nodes.launcher_member import LauncherMember

_END_TIMEOUT = 15.0  # seconds that the nodes get to end, and the launcher program to notice it, before it is killed
_ORPHANS_TIMEOUT = LINGERING  # seconds after which nodes that have lost the first host have ended their ranks
_BY_SIGNAL = 128  # exit codes of nodes above this: a signal has asked one to end


class RemoteNodes:
    """Nodes that are started on entering a with-block; none is left when it ends, unless a host does not answer.

    `command` is pdsh with its arguments; `member`, of the nodes' rendezvous, is not started yet. Where the nodes may be
    started again, they must not meet those that are left of these.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        member: LauncherMember,
        *,
        may_restart: bool = False,
    ) -> None:
        self._command = command
        self._environment = environment
        self._member = member
        self._stop_signal = 0
        self._may_restart = may_restart
        self._asked = False
        self._are_alone = False

    def __enter__(self) -> Self:
        self._member.start()  # first: a failure here must not leave a program behind
        try:
            # A session of its own: Ctrl-C reaches this process only, which has the nodes save and leave.
            self._program = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            self._member.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        try:
            self._wait_for_nodes()
        finally:
            self._end_program(0.0)
            self._member.close()
            self._member.join(_END_TIMEOUT)

    def running(self) -> bool:
        """Say whether the launcher program still runs."""
        return self._program.poll() is None

    def failures(self) -> list[Failure]:
        """Return the failures of the nodes and of the launcher program."""
        if self._member.failure is not None:
            return [self._member.failure]
        if self._stop_signal and not self._member.joined:  # there is nothing to save yet
            return [dataclasses.replace(Failure.from_exit_code(0, of_signal(self._stop_signal)), asked=True)]
        code = self._program.poll()
        return [] if code is None else self._judge(code)

    def told(self) -> list[Failure]:
        """Return what the nodes have reported by now: the cause, perhaps, of what `failures` has returned."""
        return [] if self._member.failure is None else [self._member.failure]

    def stop(self) -> Failure | None:
        """Return why the ranks have left before the end of the training; None if they have not."""
        return self._member.stopped

    def send(self, number: int) -> None:
        """Have every node pass the signal on to its ranks."""
        if number == REPORT_SIGNAL:
            self._member.ask_for_report()
            return
        self._stop_signal = number
        self._member.stop_nodes(number, 1)

    def kill(self) -> None:
        """End every node, then if need be the launcher program; a second call asks nothing again."""
        if self._asked:
            return
        runs, member = not self._has_ended(0), self._member
        self._are_alone = not runs and member.joined and member.exit_codes is None
        if not (runs or self._are_alone):
            return
        self._asked = True
        member.stop_nodes(self._stop_signal or signal.SIGTERM, 2)
        # Nodes that hang, or were never reached, are left to the program's own way of ending them.
        if runs and not (member.orphaned and self._may_restart):
            self._end_program(_END_TIMEOUT if member.joined else 0.0)

    def _wait_for_nodes(self) -> None:
        """Wait for nodes that no program ends: pdsh was killed, or they must notice the loss of the first host."""
        if self._are_alone:
            self._member.wait_for_exit_codes(LOSS_TIMEOUT if self._may_restart else _END_TIMEOUT)
        if self._member.orphaned and self._may_restart:
            if self._are_alone:
                time.sleep(_ORPHANS_TIMEOUT)
            else:
                self._has_ended(_ORPHANS_TIMEOUT)

    def _end_program(self, patience: float) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._has_ended(patience):
                return
            patience = _END_TIMEOUT
            with suppress(ProcessLookupError):
                os.killpg(self._program.pid, number)
        self._program.wait()

    def _has_ended(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._program.wait(seconds)
        return self._program.returncode is not None

    def _judge(self, code: int) -> list[Failure]:
        """Return the failures that follow from exit codes: of the nodes, and of the launcher program."""
        codes = self._member.exit_codes
        if failed := [each for each in codes or () if each not in WELL]:
            code = failed[0]
            return [dataclasses.replace(Failure.from_exit_code(0, code), asked=code > _BY_SIGNAL)]
        if codes and code == 0:
            return []
        text = (
            f"{self._command[0]} ended with exit code {code} {'after' if codes else 'before'} the training was over.\n"
            "The output above says why: a host that cannot be reached, or a node that was killed."
        )
        # A host that was lost may be there next time.
        code = CRASH if self._member.joined else USER_ERROR
        return [Failure(rank=0, when=0.0, exit_code=code, text=text, of_launcher=True, passing=not self._member.joined)]
