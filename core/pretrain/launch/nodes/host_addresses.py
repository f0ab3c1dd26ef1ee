"""Addresses of the hosts of a hostfile, asked over ssh before nodes start: one that refuses it is named at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.processes.stop_signals import stop_signals_exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT = 60.0
"""Seconds that all hosts get to answer; a thousand processes of ssh keep a login node busy for some of them."""
_END_TIMEOUT = 5.0
"""Seconds that pdsh then gets to end them."""
_SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=20"
_ANSWER = re.compile(r"pretrain-node (\d+)(.*)")
_NAMED = 8
"""Hosts that an error names at most."""


class UnreachedError(LaunchError):
    """Hosts have not answered.

    Attributes:
        hosts: their names.
    """

    def __init__(self, why: dict[str, str]) -> None:
        """Name the hosts, each with what ssh says."""
        self.hosts = tuple(why)
        named = ", ".join(f"{name} ({reason})" for name, reason in list(why.items())[:_NAMED])
        more = f" and {len(why) - _NAMED} more" if len(why) > _NAMED else ""
        super().__init__(
            f"--launcher pdsh: ssh does not reach {named}{more}.\n"
            f"ssh must reach every host without a password: try `ssh {self.hosts[0]} true`."
        )


def host_addresses(pdsh: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return the addresses of each host, as `hostname -I` gives them there.

    Args:
        pdsh: the program with its options and the hosts.
        names: of the hosts.

    Must be called in the main thread.

    Raises:
        UnreachedError: a host does not answer.
        SystemExit: Ctrl-C, SIGTERM or SIGHUP has come.
    """
    options = " ".join(filter(None, [os.environ.get("PDSH_SSH_ARGS_APPEND"), _SSH_OPTIONS]))
    environment = os.environ | {"PDSH_SSH_ARGS_APPEND": options}
    try:
        with stop_signals_exit():
            answers, errors = _output([*pdsh, "-b", "echo pretrain-node %n $(hostname -I)"], environment)
    except subprocess.TimeoutExpired as late:
        answers, errors = late.stdout or b"", late.stderr or b""
    found = {int(node): addresses.split() for node, addresses in _ANSWER.findall(answers.decode())}
    why = {name: _reason(name, errors.decode(errors="replace")) for node, name in enumerate(names) if node not in found}
    if why:
        raise UnreachedError(why)
    return [found[node] for node in range(len(names))]


def _output(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return what pdsh writes; at a timeout, or a signal to this process, no ssh is left.

    Each ssh has a session of its own. With -b, pdsh ends all of them on SIGINT.
    """
    pipe = subprocess.PIPE
    program = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        return program.communicate(timeout=_TIMEOUT)
    except BaseException:
        with program:  # closes the pipes
            program.send_signal(signal.SIGINT)
            try:
                program.communicate(timeout=_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
            finally:
                program.kill()
        raise


def _reason(name: str, errors: str) -> str:
    """Return what ssh says last about a host; pdsh writes the name before it, perhaps without the domain."""
    host = name.rpartition("@")[2]
    lines = (line.partition(": ") for line in errors.splitlines())
    said = [words for label, _, words in lines if label in {host, host.partition(".")[0]}]
    return said[-1] if said else "no answer"
