"""Start of a launcher's rank processes: forked from one that has imported for all of them, or each by itself."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self

from pretrain.launch.processes.early_signals import HELD
from pretrain.launch.processes.rank_server import READY
from pretrain.launch.processes.supervision import stop_signals_exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.launch.job import AnyJob


SWITCH = "PRETRAIN_FORK_RANKS"
"""Variable that, where it is 0, starts each rank by itself."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_PERIOD = 0.02
_LONGEST = 1000  # bytes of an answer
_ENDED = "the process that imports for all of them has ended"
_TOO_LONG = "its variables are too long for a message to the process that imports for all of them"
_NOTICE = "Each rank makes its imports itself, and starts later: {reason}.\n"


class RankProcess(Protocol):
    """A process of a rank: the members of `subprocess.Popen` that are used."""

    @property
    def pid(self) -> int:
        """Its id."""

    def poll(self) -> int | None:
        """Return its exit code, minus the number for a signal; None if it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code when it has ended; raises subprocess.TimeoutExpired after so many seconds."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""


class ForkedRank:
    """A child of this process that another one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        """Return its exit code, minus the number for a signal; None if it runs."""
        # A signal's handler may call this in the middle of itself, and must not wait for the process a second time.
        if self._code is None and self._asking.acquire(blocking=False):
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            except ChildProcessError:  # something else has taken its exit code
                self._code = 1
            finally:
                self._asking.release()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code when it has ended; raises subprocess.TimeoutExpired after so many seconds."""
        begun = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - begun > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_PERIOD)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class RankStarter:
    """Starts the ranks of all attempts in a with-block; if it `forks`, from a server that it keeps for the block."""

    def __init__(self, *, forks: bool) -> None:
        self._forks = forks and sys.platform == "linux" and os.environ.get(SWITCH) != "0"
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # then the system would take exit codes
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None

    def prepare(self, job: AnyJob, common: Mapping[str, str]) -> None:
        """Let the imports begin, for ranks that `start` later with these variables."""
        if self._forks and self._server is None:
            self._server = _Server(job, common)

    def start(self, job: AnyJob, common: Mapping[str, str], own: Mapping[str, str]) -> RankProcess:
        """Start a rank, with the variables that all ranks of this launcher have and those of its own."""
        if self._forks:
            try:
                self._server = self._server or _Server(job, common)
                return self._server.fork(job, {**common, **own})
            except _NoForkError as no:
                sys.stderr.write(_NOTICE.format(reason=no))
                self._forks = no.may_pass
                self.__exit__()
            except BaseException:  # a signal, in the time of the imports
                self.__exit__()
                raise
        return _started("rank", job.to_json(), variables={**common, **own})


class _NoForkError(Exception):
    """Why there is no fork; if it `may_pass`, there may be one when the next rank is started."""

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


class _Server:
    def __init__(self, job: AnyJob, variables: Mapping[str, str]) -> None:
        self._is_ready, self._requests = False, 0
        self._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            number = its.fileno()
            self._process = _started("rank_server", str(number), job.to_json(), variables=variables, keeps=(number,))

    def _wait(self) -> None:
        """Wait for the imports."""
        is_main = threading.current_thread() is threading.main_thread()
        with stop_signals_exit() if is_main else nullcontext():
            answer = self._answer(may_pass=False)
        if answer != READY.decode():
            raise _NoForkError(answer, may_pass=False)
        self._is_ready = True

    def fork(self, job: AnyJob, variables: Mapping[str, str]) -> ForkedRank:
        """Have a child of this process forked, once the imports are done."""
        if not self._is_ready:
            self._wait()
        self._requests += 1
        request = json.dumps({"number": self._requests, "job": job.to_json(), "variables": variables}).encode()
        with _adopting():
            try:
                self._connection.send(request)
            except ConnectionError as error:
                raise _NoForkError(_ENDED, may_pass=True) from error
            except OSError as error:
                raise _NoForkError(_TOO_LONG, may_pass=False) from error
            # One to an earlier request comes where that rank was killed right after its own.
            while (answered := self._answer().partition(" "))[0] != str(self._requests):
                pass
        answer = answered[2]
        if not answer.isdecimal():
            raise _NoForkError(answer, may_pass=True)
        return ForkedRank(int(answer))

    def end(self) -> None:
        """End it; the ranks go on."""
        self._connection.close()
        self._process.kill()  # it holds nothing
        self._process.wait()

    def _answer(self, *, may_pass: bool = True) -> str:
        try:
            answer = self._connection.recv(_LONGEST)
        except ConnectionError:
            answer = b""
        if not answer:
            raise _NoForkError(_ENDED, may_pass=may_pass)
        return answer.decode(errors="replace")


@contextmanager
def _adopting() -> Iterator[None]:
    """Make processes whose parents end in a block children of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


def _started(
    module: str, *arguments: str, variables: Mapping[str, str], keeps: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a module of this folder in which the signals of `HELD` wait until it handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        return subprocess.Popen(
            # -P: a file in the working directory must not hide a module of the same name.
            [sys.executable, "-P", "-m", f"pretrain.launch.processes.{module}", *arguments],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            # A session of its own: Ctrl-C on the terminal reaches the launcher only, which passes it on once.
            start_new_session=True,
            pass_fds=keeps,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
