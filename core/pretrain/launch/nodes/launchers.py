"""Launchers that reach the hosts of a hostfile: pdsh, mpirun and srun, and the command line of each."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.nodes.host_addresses import host_addresses
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
            UnreachedError: pdsh's ssh does not reach a host.
            LaunchError: MASTER_PORT is no port, or the first host has no address.
        """
        port = port_variable(environ, port_of(os.getpid() + attempt))
        is_given = bool(environ.get("MASTER_ADDR")) and not self.is_first_lost
        # Names in pdsh's hostfile may be known to ssh alone.
        host = self._first_address(is_given=is_given) if self.launcher == PDSH else self._first_host()
        return environ["MASTER_ADDR"] if is_given else host, port

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
            return [*self._pdsh(), f"cd {_for_pdsh(str(Path.cwd()))} && {script}"]
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

    def _pdsh(self) -> list[str]:
        names = ",".join(host.name for host in self.hosts.members)
        return ["pdsh", "-R", "ssh", "-S", "-f", str(_MAX_FANOUT), "-w", names]

    def _first_address(self, *, is_given: bool) -> str:
        """Return the first address of the first host, if it is not given; all hosts must answer."""
        names = [host.name for host in self.hosts.members]
        first = host_addresses(self._pdsh(), names)[0]
        if not first and not is_given:
            msg = (
                f"--launcher pdsh: `hostname -I` gives no address on {names[0]}.\n"
                "Set MASTER_ADDR to an address of the first host that all hosts reach."
            )
            raise LaunchError(msg)
        return first[0] if first else ""


def _for_pdsh(word: str) -> str:
    """Quote a word for the shells of the hosts, and for pdsh, which replaces %n, %h and %u."""
    return word if word == _PDSH_RANK else shlex.quote(word).replace("%", "%%")
