"""Nodes of a hostfile from the starting process: pdsh, and a member of the nodes' rendezvous that talks to them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]

from pretrain.exit_codes import WELL, of_signal
from pretrain.launch.nodes import joining
from pretrain.launch.nodes.attempt import attempt_prefix
from pretrain.launch.nodes.joining import HOSTFILE_TIMEOUT, LINGERING
from pretrain.launch.nodes.reports import Reports, request_key
from pretrain.launch.nodes.store_client import connect
from pretrain.launch.processes.early_signals import REQUEST_SIGNALS
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.report.plain_text import some_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_PERIOD = 0.25
_TIMEOUT = timedelta(seconds=30)
_NOTICE_AFTER = 60.0  # seconds after which hosts that have not joined are named
_REJOIN_TIMEOUT = 15.0  # seconds that a broken connection gets: the node that serves the rendezvous may still be there
_TIMES_FOR_FIRST = 2
"""Patience for the first host, which serves the rendezvous that the others wait for, in that for the others."""
LOSS_TIMEOUT = 60.0
"""Seconds after which the loss of the first host is known: `_TIMEOUT`, `_REJOIN_TIMEOUT`, and a last try."""
_NAMES = 8  # hosts that an error names at most
_END_TIMEOUT = 15.0  # seconds that the nodes get to end, and the launcher program to notice it, before it is killed
_ORPHANS_TIMEOUT = LINGERING  # seconds after which nodes that have lost the first host have ended their ranks
_BY_SIGNAL = 128  # exit codes of nodes above this: a signal has asked one to end


class LauncherMember(threading.Thread):
    """Thread that talks to the nodes: a node that does not answer must not block the launcher's signal handling.

    It calls `all_came` once. Hosts get `patience` seconds to join, None: `HOSTFILE_TIMEOUT` after the first one, for
    which there is no limit. At a restart a node of an attempt before may still serve that one's rendezvous.
    """

    def __init__(
        self,
        endpoint: tuple[str, int],
        hosts: Sequence[str],
        run: str,
        all_came: Callable[[], object] = lambda: None,
        patience: float | None = None,
        *,
        at_restart: bool = False,
    ) -> None:
        super().__init__(daemon=True, name="rendezvous")
        self.joined = False  # the rendezvous is there, and the launcher has joined it
        self.failure: Failure | None = None  # as nodes report it, or the launcher finds
        self.exit_codes: list[int] | None = None  # of all nodes, once all have ended
        self.stopped: Failure | None = None  # why ranks left early, without a failure; with `exit_codes`
        self.orphaned = False  # the first host's node is lost; nothing more is known of the others
        self._endpoint = endpoint
        self._address = ":".join(map(str, endpoint))
        self._hosts = hosts
        self._run = run
        self._all_came = all_came
        self._patience = patience
        self._lingering = LINGERING if at_restart else 0.0
        self._requests: deque[int] = deque()  # signals that nodes are to pass on
        self._await_nodes = True
        self._arrival = self._notice = math.inf
        self._taken_keys = [joining.taken_key(node) for node in range(len(hosts))]
        self._ended_keys = [joining.ended_key(node) for node in range(len(hosts))]
        self._request = self._request_sent = ""
        self._closed = threading.Event()

    def stop_nodes(self, number: int, times: int) -> None:
        """Ask every node to act as if it had received the signal `times` times."""
        self._request = json.dumps([int(number), times])

    def ask(self, number: int) -> None:
        """Have the nodes pass on to their ranks a signal of `REQUEST_SIGNALS`."""
        self._requests.append(number)

    def wait_for_exit_codes(self, seconds: float) -> None:
        """Wait until all nodes have ended, or the rendezvous is lost."""
        deadline = time.monotonic() + seconds
        while self.exit_codes is None and self.is_alive() and time.monotonic() < deadline:
            time.sleep(_PERIOD)

    def close(self) -> None:
        """Leave the rendezvous soon."""
        self._closed.set()

    def run(self) -> None:
        """Join, exchange requests for reports, and leave."""
        patience = HOSTFILE_TIMEOUT.total_seconds() if self._patience is None else self._patience
        store = self._join(math.inf if self._patience is None else _TIMES_FOR_FIRST * patience)
        if store is None and not self._closed.is_set():
            self.failure = self.failure or self._absence([self._hosts[0]], _TIMES_FOR_FIRST * patience)
        self._notice = time.monotonic() + _NOTICE_AFTER
        self._arrival = time.monotonic() + patience
        self._seconds = patience
        while store is not None:
            try:
                while self.exit_codes is None and not self._closed.is_set():
                    self._exchange(store)
                    if self._await_nodes:
                        self._look_for_nodes(store)
                    self._closed.wait(_PERIOD)
                self._exchange(store)
                store.add(joining.GONE, 1)
                store = None
            except DistError:
                if self.exit_codes is not None:
                    return
                self._request_sent = ""
                store = self._join(_REJOIN_TIMEOUT)
                if store is None and not self._closed.is_set():
                    self.orphaned = len(self._hosts) > 1
                    self.failure = self.failure or self._loss()

    def _look_for_nodes(self, store: TCPStore) -> None:
        """Notice that all nodes have come; name those that have not after a while, and fail after the timeout."""
        if store.check(self._taken_keys):
            self._await_nodes = False
            self._all_came()
        elif time.monotonic() > self._arrival and (absent := self._absent(store)):
            self._await_nodes = False
            self.failure = self.failure or self._absence(absent, self._seconds)
        elif time.monotonic() > self._notice and (absent := self._absent(store)):
            self._notice = math.inf
            sys.stderr.write(
                f"--hostfile: {some_of(absent, _NAMES)} did not join within {_NOTICE_AFTER:g} s; "
                f"the run ends after {self._seconds:.0f} s.\n"
            )

    def _join(self, seconds: float) -> TCPStore | None:
        """Return the rendezvous; None if it stays another run's, cannot be reached in time, or `close` was called."""
        now = time.monotonic()
        deadline, others_leave = now + seconds, now + self._lingering
        while not self._closed.is_set() and time.monotonic() < deadline:
            with suppress(DistError):
                store = connect(self._endpoint, _TIMEOUT)
                if not joining.is_of_run(store, self._run):
                    if time.monotonic() < others_leave:
                        self._closed.wait(_PERIOD)
                        continue
                    text = joining.another_run(self._address)
                    self.failure = Failure(exit_code=USER_ERROR, text=text, passing=True)
                    return None
                store.set(joining.LAUNCHER, "joined")
                self.joined = True
                return store
            self._closed.wait(_PERIOD)
        return None

    def _absent(self, store: TCPStore) -> list[str]:
        return [host for host, key in zip(self._hosts, self._taken_keys, strict=True) if not store.check([key])]

    def _absence(self, absent: list[str], seconds: float) -> Failure:
        text = (
            f"--hostfile: {some_of(absent, _NAMES)} did not join within {seconds:.0f} s.\n"
            "The output above may say why. Check that the launcher program reaches each of them and starts "
            f"{sys.executable} there, and that they reach {self._address}."
        )
        return Failure(exit_code=USER_ERROR, text=text, absent=tuple(absent))

    def _loss(self) -> Failure:
        text = (
            f"--hostfile: {self._hosts[0]}, which serves the rendezvous {self._address}, cannot be reached any more.\n"
            "Its node was killed, or the host or the network is down: look at the output above and at the host."
        )
        return Failure(text=text, of_launcher=True)

    def _better(self, reported: Failure) -> Failure:
        """Return the failure of the run: the first one, unless it is a consequence of which a node knows the cause."""
        # The end of a node that was asked to end explains nothing: this launcher asks all when it has a failure.
        first = self.failure
        return first if first is not None and (not first.lost_peer or reported.asked) else reported

    def _exchange(self, store: TCPStore) -> None:
        request = self._request
        if request != self._request_sent:
            store.set(joining.STOP, request)
            self._request_sent = request
        while self._requests:
            store.add(request_key(self._requests[0]), 1)
            self._requests.popleft()
        ended = store.check(self._ended_keys)
        reports = Reports(PrefixStore(attempt_prefix(0), store))
        if reported := reports.failure():
            self.failure = self._better(reported)
            store.set(joining.READ, "by the launcher")
        if ended and self.exit_codes is None:
            self.stopped = reports.stopped()
            self.exit_codes = [int(store.get(key)) for key in self._ended_keys]


class RemoteNodes:
    """Nodes that are started on entering a with-block; none is left when it ends, unless a host does not answer."""

    # If the nodes may be started again, those must not meet any that are left of these.

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        member: LauncherMember,
        *,
        may_restart: bool = False,
    ) -> None:
        self._command, self._environment, self._member = command, environment, member
        self._may_restart = may_restart
        self._stop_signal = 0
        self._asked = self._are_alone = False

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
        if number in REQUEST_SIGNALS:
            self._member.ask(number)
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
        # A signal ends the wait: it is no longer one that `supervise` counts.
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
        return [Failure(when=0.0, exit_code=code, text=text, of_launcher=True, passing=not self._member.joined)]
