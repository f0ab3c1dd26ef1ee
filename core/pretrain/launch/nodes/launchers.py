"""DeepSpeed's launchers: what they need, and how deepspeed/launcher/runner.py is told to use them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.schedulers.integer_variable import integer_variable
from pretrain.launch.world import LOCALHOST, port_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.launch.nodes.hostfile import Hosts

PDSH, OPENMPI, SLURM = "pdsh", "openmpi", "slurm"
LAUNCHERS = (PDSH, OPENMPI, SLURM)
"""Values of `--launcher`; the first is the default, as with DeepSpeed."""

_PROGRAMS = {PDSH: ("pdsh", "ssh"), OPENMPI: ("mpirun", "ompi_info"), SLURM: ("srun", "sinfo")}
"""What each calls, or looks for to know that it is there."""
_REMEDY = {
    PDSH: "Install pdsh and an ssh client (Debian, Ubuntu, Fedora: the packages pdsh and openssh-client)",
    OPENMPI: "Install Open MPI (Debian, Ubuntu: the package openmpi-bin)",
    SLURM: "Call it on a machine of the Slurm cluster",
}
RANK = Path(__file__).parents[1] / "hosted_rank.py"
"""The script that DeepSpeed starts as each rank."""
_PLAIN = re.compile(r"[\w@+=:,./-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosted:
    """Hosts, and who starts the ranks there.

    Attributes:
        hosts: of the run.
        launcher: one of `LAUNCHERS`.
    """

    hosts: Hosts
    launcher: str

    def __post_init__(self) -> None:
        counts = {host.slots for host in self.hosts.members}
        if self.launcher == SLURM and len(counts) > 1:
            msg = (
                f"--launcher slurm needs the same slots on every host; {self.hosts.file} has {self.hosts}.\n"
                f"Make them equal, or pass --launcher {PDSH} or {OPENMPI}."
            )
            raise LaunchError(msg)

    def require(self) -> None:
        """Pass when the launcher can be called here.

        Raises:
            LaunchError: DeepSpeed, or a program that it calls, is not installed.
        """
        if importlib.util.find_spec("deepspeed") is None:
            msg = (
                "--hostfile uses DeepSpeed's launcher, and deepspeed is not installed.\n"
                'pip install "pretrain[deepspeed]", or start the ranks of every host yourself: --nnodes and --rdzv.'
            )
            raise LaunchError(msg)
        missing = [program for program in _PROGRAMS[self.launcher] if shutil.which(program) is None]
        if missing:
            others = " or ".join(f"--launcher {other}" for other in LAUNCHERS if other != self.launcher)
            msg = (
                f"--launcher {self.launcher}: not on the PATH: {', '.join(missing)}.\n"
                f"{_REMEDY[self.launcher]}, or pass {others}, or start every host yourself: --nnodes and --rdzv."
            )
            raise LaunchError(msg)

    def arguments(self, folder: Path, environ: Mapping[str, str]) -> list[str]:
        """Return the arguments of deepspeed/launcher/runner.py.

        The ranks are a script, not a module: DeepSpeed's slurm launcher forgets `--module` (multinode_runner.py:419).

        Args:
            folder: of the `Board`; the only argument of the ranks.
            environ: see `meeting`.

        Raises:
            LaunchError: a path that pdsh's shells would not read as it is.
        """
        address, port = self.meeting(environ)
        return [
            *("--hostfile", str(self.hosts.file), "--launcher", self.launcher, "--log_level", "warning"),
            # A single host would else be taken for this machine, whatever its name (runner.py:537).
            *("--force_multi", "--no_local_rank"),
            *(["--master_addr", address] if address else []),
            *("--master_port", str(port)),
            *self._own_arguments(),
            *self._rank_command(folder),
        ]

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what the launcher itself does not tell the ranks about where they meet; `environ` as in `meeting`."""
        address, port = self.meeting(environ)
        if self.launcher == PDSH:
            return {}
        # srun knows better which host has rank 0.
        return {"MASTER_PORT": str(port)} | ({"MASTER_ADDR": address} if self.launcher == OPENMPI else {})

    def meeting(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Return address and port where the ranks meet; for pdsh no address: DeepSpeed asks the first host for its own.

        Args:
            environ: MASTER_ADDR and MASTER_PORT count, if the user has set them.
        """
        address = environ.get("MASTER_ADDR") or ("" if self.launcher == PDSH else self._first_host())
        return address, integer_variable(environ, "MASTER_PORT", port_of(os.getpid()))

    def _first_host(self) -> str:
        """Return the host of rank 0 as the others can reach it."""
        name = self.hosts.members[0].name.rpartition("@")[2]
        here = name in {"localhost", LOCALHOST} and len(self.hosts.members) > 1
        return socket.gethostname() if here else name

    def _own_arguments(self) -> list[str]:
        # The ssh check is pdsh's business, but DeepSpeed makes it for every launcher.
        if self.launcher == OPENMPI:
            # mpirun binds a rank, with all its threads, to one core where there are two ranks.
            return ["--no_ssh_check", "--launcher_args=--bind-to none"]
        if self.launcher == SLURM:
            # By itself DeepSpeed tells srun how many ranks, but not where (multinode_runner.py:400).
            names = "@".join(host.name for host in self.hosts.members)
            tasks = f"--launcher_args=--ntasks-per-node={self.hosts.members[0].slots}"
            return ["--no_ssh_check", "--include", names, tasks]
        return []

    def _rank_command(self, folder: Path) -> list[str]:
        paths = [str(RANK), str(folder)]
        for path in (*paths, str(Path.cwd()), sys.executable):
            if self.launcher == PDSH and not _PLAIN.fullmatch(path):
                msg = (
                    f"--launcher pdsh: DeepSpeed hands paths to a shell as they are, and '{path}' is read otherwise "
                    f"there.\nUse a path of letters, digits and _@+=:,.-, or pass --launcher {OPENMPI} or {SLURM}."
                )
                raise LaunchError(msg)
        return paths
