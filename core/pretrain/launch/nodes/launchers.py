"""Launchers that reach the hosts of a hostfile: pdsh, mpirun and srun, and the command line of each."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.nodes.node_command import BY_SLURM
from pretrain.launch.nodes.variables_file import with_variables
from pretrain.launch.schedulers.integer_variable import port_variable
from pretrain.launch.world import LOCALHOST, port_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.launch.nodes.hostfile import Hosts

PDSH, OPENMPI, SLURM = "pdsh", "openmpi", "slurm"
LAUNCHERS = (PDSH, OPENMPI, SLURM)
"""Values of `--launcher`; the first is the default, as with DeepSpeed."""

_PROGRAMS = {PDSH: ("pdsh", "ssh"), OPENMPI: ("mpirun",), SLURM: ("srun",)}
_REMEDY = {
    PDSH: "Install pdsh and an ssh client (Debian, Ubuntu, Fedora: the packages pdsh and openssh-client)",
    OPENMPI: "Install Open MPI (Debian, Ubuntu: the package openmpi-bin)",
    SLURM: "Call it on a machine of the Slurm cluster",
}
_MAX_FANOUT = 1024
"""Hosts that pdsh reaches at the same time; the others would start only when those have ended."""
_PDSH_RANK = "%n"
"""pdsh's word for the number of a host among those of -w."""
_SSH_TIMEOUT = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosted:
    """Hosts of a run and the launcher that starts a node on each.

    Attributes:
        hosts: of the run.
        launcher: one of `LAUNCHERS`.
        is_first_lost: the first of them is not the one that MASTER_ADDR is an address of.
    """

    hosts: Hosts
    launcher: str
    is_first_lost: bool = False

    def require(self) -> None:
        """Check that the launcher program is installed here.

        Raises:
            LaunchError: a program that it needs is not installed.
        """
        missing = [program for program in _PROGRAMS[self.launcher] if shutil.which(program) is None]
        if missing:
            others = " or ".join(f"--launcher {other}" for other in LAUNCHERS if other != self.launcher)
            msg = (
                f"--launcher {self.launcher}: not on the PATH: {', '.join(missing)}.\n"
                f"{_REMEDY[self.launcher]}, or pass {others}, or start every host yourself: --nnodes and --rdzv."
            )
            raise LaunchError(msg)

    def endpoint(self, environ: Mapping[str, str], attempt: int = 0) -> tuple[str, int]:
        """Return address and port of the rendezvous, on the first host.

        Args:
            environ: MASTER_ADDR and MASTER_PORT count, if the user has set them; MASTER_ADDR while its host is there.
            attempt: number of starts before; each has a port of its own, unless the user has set one, since a node of
                one before may still serve that one's.

        Raises:
            LaunchError: MASTER_PORT is no port, or pdsh's ssh does not reach the first host.
        """
        port = port_variable(environ, port_of(os.getpid() + attempt))
        if environ.get("MASTER_ADDR") and not self.is_first_lost:
            return environ["MASTER_ADDR"], port
        # Names in pdsh's hostfile may be known to ssh alone.
        return self._first_address() if self.launcher == PDSH else self._first_host(), port

    def without(self, names: Sequence[str]) -> Hosted | None:
        """Return the hosts without those of these names; None if none is left."""
        left = tuple(host for host in self.hosts.members if host.name not in names)
        if not left:
            return None
        is_first_lost = self.is_first_lost or left[0] != self.hosts.members[0]
        return dataclasses.replace(
            self, hosts=dataclasses.replace(self.hosts, members=left), is_first_lost=is_first_lost
        )

    def command(self, run: Sequence[str], variables: Path, environ: Mapping[str, str]) -> list[str]:
        """Return the launcher program and its arguments.

        Args:
            run: the command of all nodes, without --node-rank and --nproc.
            variables: file of the environment variables of every node; see `variables_file`.
            environ: of this process; says whether it is in an allocation of Slurm.
        """
        names = [host.name for host in self.hosts.members]
        if self.launcher == PDSH:
            script = " ".join(map(_for_pdsh, self._node(_PDSH_RANK, run, variables)))
            options = ["-R", "ssh", "-S", "-f", str(_MAX_FANOUT), "-w", ",".join(names)]
            return ["pdsh", *options, f"cd {_for_pdsh(str(Path.cwd()))} && {script}"]
        if self.launcher == OPENMPI:
            nodes = [
                ["-n", "1", "-host", name, *self._node(str(rank), run, variables)] for rank, name in enumerate(names)
            ]
            # mpirun would bind a node, with all its ranks, to one core.
            words = ["mpirun", "--bind-to", "none", *nodes[0]]
            return words + [word for node in nodes[1:] for word in (":", *node)]
        count, most = len(names), max(host.slots for host in self.hosts.members)
        placed = [f"--ntasks={count}", f"--nodes={count}", "--ntasks-per-node=1", f"--nodelist={','.join(names)}"]
        # In an allocation a step has all cores of its nodes, elsewhere those that it asks for.
        cores = [] if "SLURM_JOB_ID" in environ else [f"--cpus-per-task={most}"]
        node = self._node(BY_SLURM + ",".join(names), run, variables)
        return ["srun", *placed, *cores, "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL", *node]

    def _node(self, place: str, run: Sequence[str], variables: Path) -> list[str]:
        """Return the command that one node executes; see `node_command`."""
        slots = ",".join(str(host.slots) for host in self.hosts.members)
        python = [sys.executable, "-P", "-m", "pretrain.launch.nodes.node_command"]
        return with_variables(variables, [*python, place, slots, *run])

    def _first_host(self) -> str:
        """Return the first host as the others can reach it."""
        name = self.hosts.members[0].name.rpartition("@")[2]
        here = name in {"localhost", LOCALHOST} and len(self.hosts.members) > 1
        return socket.gethostname() if here else name

    def _first_address(self) -> str:
        """Return the first address of the first host, asked over ssh."""
        host = self.hosts.members[0].name
        command = ["ssh", "-o", "BatchMode=yes", host, "hostname", "-I"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SSH_TIMEOUT, check=False
            )
            addresses, reason = done.stdout.split(), done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            addresses, reason = [], [f"no answer within {_SSH_TIMEOUT} s"]
        if not addresses:
            why = f" ({reason[0]})" if reason else ""
            msg = (
                f"--launcher pdsh: `ssh {host} hostname -I` gave no address{why}.\n"
                "ssh must reach every host without a password; or set MASTER_ADDR to an address of the first host."
            )
            raise LaunchError(msg)
        return addresses[0]


def _for_pdsh(word: str) -> str:
    """Quote a word for the shells of the hosts, and for pdsh, which replaces %n, %h and %u."""
    return word if word == _PDSH_RANK else shlex.quote(word).replace("%", "%%")
