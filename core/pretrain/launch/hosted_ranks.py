"""The ranks of several hosts, as this process knows them: DeepSpeed's launcher as its child, and the board."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pretrain.launch.board import END, Board, Task
from pretrain.launch.processes.failure import USER_ERROR, Failure
from pretrain.launch.processes.supervision import supervise
from pretrain.observe.environment import COMMAND
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.job import Job
    from pretrain.launch.nodes.launchers import Hosted

_PERIOD = 1.0
_CONSEQUENCE = 10.0
"""Seconds that ranks which only lost another one wait for a word of that one, or for DeepSpeed to notice its end."""
_PATIENCE = 15.0
"""Seconds that ranks get to obey, and DeepSpeed to notice that they have ended."""


def run_hosted(job: Job, hosted: Hosted) -> Failure | None:
    """Run a prepared job on every rank of the hosts; returns and raises as `start`."""
    run_dir = Path(job.run_dir or "").absolute()
    backend = load_alone(find_backend(job.backend)).backend
    shared = ("PRETRAIN_", *backend.exported_variables)
    variables = {name: value for name, value in os.environ.items() if name.startswith(shared)}
    variables |= {COMMAND: shlex.join(sys.argv), **hosted.variables(os.environ)}
    if not sys.stdout.isatty():
        variables["TTY_COMPATIBLE"] = "0"  # mpirun gives the ranks a terminal, whose progress bars would be in a log
    task = Task(job=dataclasses.replace(job, run_dir=str(run_dir)), launcher=hosted.launcher, variables=variables)
    kept = [name for name in backend.own_variables if name in os.environ]
    if kept:
        sys.stderr.write(
            f"--hostfile keeps {', '.join(kept)} from the ranks: true of one host alone.\n"
            "Set it on each host, or in .deepspeed_env where it is the same on all.\n"
        )
    board = Board.pin(run_dir, task)
    try:
        runner = [sys.executable, "-P", "-m", "pretrain.launch.runner", job.backend, str(board.folder)]
        command = [*runner, *hosted.arguments(board.folder, os.environ)]
        with HostedRanks(command, board, hosted.hosts.slots, own_variables=backend.own_variables) as ranks:
            return supervise(ranks)
    finally:
        board.remove()


class HostedRanks:
    """Started on entering the with-block; none is left when it ends, unless a host does not answer any more."""

    def __init__(
        self, command: Sequence[str], board: Board, world_size: int, *, own_variables: Sequence[str] = ()
    ) -> None:
        """Describe the child process that starts them.

        Args:
            command: of the launcher.
            board: where they and this process talk.
            world_size: ranks of all hosts.
            own_variables: environment variables of this host that the launcher must not see: it would hand them on.
        """
        self._command = command
        self._kept = frozenset(own_variables)
        self._board = board
        self._world_size = world_size
        self._asked_to_stop = False
        self._seen: list[Failure] = []
        self._looked = 0.0
        self._lost = 0.0

    def __enter__(self) -> Self:
        # A safe path for DeepSpeed and the ranks as well: it hands on every variable that begins with PYTHON.
        environment = {name: value for name, value in os.environ.items() if name not in self._kept}
        environment["PYTHONSAFEPATH"] = "1"
        # A session of its own: Ctrl-C reaches this process only, which has rank 0 save and leave.
        self._runner = subprocess.Popen(
            self._command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def running(self) -> bool:
        """Say whether the launcher still runs."""
        return self._runner.poll() is None

    def failures(self) -> list[Failure]:
        """Return why ranks, or the launcher, have ended; looked up once a second while the launcher runs."""
        code = self._runner.poll()
        if code is None and time.monotonic() - self._looked < _PERIOD:
            return self._seen
        self._looked = time.monotonic()
        told = self._board.failures() if code is None else self._board.last_words(self._world_size)
        if told and not self._asked_to_stop and all(each.lost_peer or each.interrupted for each in told):
            self._seen = self._without_cause(told, ended=code is not None)
        elif self._asked_to_stop and not told and not self._board.begun():
            self._seen = [Failure.without_a_word(0, 128 + signal.SIGINT)]  # There is nothing to save yet.
        elif told or code is None:
            self._seen = told
        else:
            self._seen = _of_launcher(code, finished=self._board.finished())
        return self._seen

    def send(self, number: int) -> None:
        """Have rank 0 take the signal; the others follow it."""
        self._asked_to_stop = True
        self._board.give(signal.Signals(number).name)

    def kill(self) -> None:
        """End every rank at once, then if need be the launcher."""
        if self._has_left(0):
            return
        self._board.give(END)
        # Ranks that hang, or do not see the board, are left to DeepSpeed's own way of ending them.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._has_left(_PATIENCE):
                return
            with suppress(ProcessLookupError):
                os.killpg(self._runner.pid, number)
        self._runner.wait()

    def _has_left(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._runner.wait(seconds)
        return self._runner.returncode is not None

    def _without_cause(self, told: list[Failure], *, ended: bool) -> list[Failure]:
        """Wait a moment for the rank that knows more; if there is none, say what is known."""
        self._lost = self._lost or time.monotonic()
        if not ended and time.monotonic() - self._lost < _CONSEQUENCE:
            return []
        silent = sorted(set(range(self._world_size)) - {failure.rank for failure in told})
        if not silent:  # A network that fails, for instance.
            return told
        who = f"rank {silent[0]}" if len(silent) == 1 else f"one of the ranks {', '.join(map(str, silent[:8]))}"
        text = (
            f"{who}{' ...' if len(silent) > 8 else ''} ended without a word, most often because its host was out of "
            "memory: `dmesg` there tells.\nThe output above may say more."
        )
        return [Failure(rank=0, when=0.0, exit_code=USER_ERROR, text=text)]


def _of_launcher(code: int, *, finished: bool) -> list[Failure]:
    """Judge by the launcher's end; DeepSpeed's is 0 also where pdsh, mpirun or srun was killed (runner.py:639)."""
    if finished and code == 0:
        return []
    text = (
        f"DeepSpeed's launcher ended with exit code {code} {'after' if finished else 'before'} the training was over.\n"
        "The output above says why: a host that cannot be reached, or a rank that was killed."
    )
    return [Failure(rank=0, when=0.0, exit_code=USER_ERROR, text=text)]
