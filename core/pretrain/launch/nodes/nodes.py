"""The nodes of a run: how many, where they meet, and the hosts of a hostfile, which is in DeepSpeed's format."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HOSTFILE_NODE = "PRETRAIN_HOSTFILE_NODE"
"""Environment variable of the nodes that `--hostfile` starts: the identity of their run."""
HOSTFILE_SLOTS = "PRETRAIN_HOSTFILE_SLOTS"
"""Environment variable of these nodes: the ranks of each, in the order of the nodes, with commas between."""
_ENTRY = re.compile(r"([^\s\[\],#]+)\s+slots=(\d+)(\s.*)?")
"""As deepspeed/launcher/runner.py reads it; what follows (`max_slots=8`) is for mpirun. No brackets or commas: pdsh
would make several hosts of them, while DeepSpeed counts one."""
_NEARLY = re.compile(r"([^\s\[\],#:=]+)(?:(?:\s+|:)(?:slots?\s*[=:]?\s*)?(\d+))?", re.IGNORECASE)
"""What else people write: `host slot=8`, `host slots = 8`, `host:8`, `host 8`, `host`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes of a run on which `pretrain` starts the ranks itself, by the same command on each."""

    count: int = 1
    rendezvous: str | None = None  # "HOST:PORT", HOST being one of them or `external`; None for a single node
    rank: int | None = None  # of this node; None: HOST is node 0, the others count in the order of arrival
    run: str = ""  # identity of the run if `--hostfile` started this node
    spares: int = 0  # nodes beyond `count` that wait, to take the place of one that is lost
    external: bool = False  # `pretrain rendezvous` serves the rendezvous, not node 0

    def __post_init__(self) -> None:
        if self.count == 1 and not self.of_hostfile and (self.rendezvous is not None or self.rank is not None):
            msg = "--rdzv and --node-rank have no effect on one node.\nPass --nnodes N as well, or leave them out."
            raise LaunchError(msg)
        if self.count > 1 and self.rendezvous is None:
            where = "is where `pretrain rendezvous` runs" if self.external else "is one of them, PORT is free there"
            msg = (
                f"--nnodes {self.count} needs a rendezvous: --rdzv HOST:PORT.\n"
                f"Give the same command on every node; HOST {where}."
            )
            raise LaunchError(msg)
        if self.rank is not None and self.rank >= self.count + self.spares:
            spares = f" plus --spares {self.spares}" if self.spares else ""
            msg = f"--node-rank {self.rank} is not below --nnodes {self.count}{spares}; nodes are counted from 0."
            raise LaunchError(msg)
        if self.count == 1 and (self.spares or self.external):
            option = f"--spares {self.spares}" if self.spares else "--external-rdzv"
            msg = f"{option} has no effect on one node.\nPass --nnodes N and --rdzv HOST:PORT as well, or leave it out."
            raise LaunchError(msg)

    @property
    def of_hostfile(self) -> bool:
        """True if `--hostfile` started this node; its launcher joins the rendezvous too, also that of a single node."""
        return bool(self.run)

    def endpoint(self) -> tuple[str, int]:
        """Return host and port of the rendezvous."""
        host, _, port = (self.rendezvous or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            msg = f"--rdzv '{self.rendezvous}' is not HOST:PORT, such as node0:29500."
            raise LaunchError(msg)
        return host.strip("[]"), int(port)


def largest_fitting(ranks: Sequence[int], fewest: int, check: Callable[[int], object]) -> int:
    """Return how many of the first nodes the layout takes at most, `fewest` or more; else raise RecipeError for all."""
    reason: RecipeError | None = None
    for count in range(len(ranks), max(1, fewest) - 1, -1):
        try:
            check(sum(ranks[:count]))
        except RecipeError as error:
            reason = reason or error
        else:
            return count
    raise reason or RecipeError(f"{len(ranks)} nodes are there; {fewest} are needed.")


@dataclass(frozen=True, slots=True)
class Host:
    """Line of the hostfile."""

    name: str  # as ssh knows it
    slots: int  # ranks, which take its devices from 0 on


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Hosts of a run in the order of their ranks: at least one, no name twice."""

    file: Path
    members: tuple[Host, ...]
    is_first_lost: bool = False  # the first of them is not the one that MASTER_ADDR is an address of

    @property
    def slots(self) -> int:
        """Ranks of all hosts."""
        return sum(host.slots for host in self.members)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [host.name for host in self.members]

    def without(self, names: Sequence[str]) -> Hosts | None:
        """Return the hosts without those of these names; None if none is left."""
        left = tuple(host for host in self.members if host.name not in names)
        if not left:
            return None
        return replace(self, members=left, is_first_lost=self.is_first_lost or left[0] != self.members[0])

    def __str__(self) -> str:
        return ", ".join(f"{host.name} {host.slots}" for host in self.members)


def read_hostfile(path: Path) -> Hosts:
    """Read a line `HOST slots=RANKS` for each host; empty lines and lines that begin with # do not count."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        msg = f"--hostfile {path} cannot be read: {reason}.\nIt has a line for each host, with its ranks: node1 slots=8"
        raise LaunchError(msg) from error
    members: dict[str, Host] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        host = _host(f"{path}, line {number}", entry)
        if host.name in members:
            msg = (
                f"{path}, line {number}: {host.name} is listed already, in line {lines[host.name]}.\n"
                f"Give each host one line with all its ranks: {host.name} slots={members[host.name].slots + host.slots}"
            )
            raise LaunchError(msg)
        members[host.name], lines[host.name] = host, number
    if not members:
        msg = f"{path} names no host.\nWrite a line for each, with its ranks: node1 slots=8"
        raise LaunchError(msg)
    return Hosts(file=path.absolute(), members=tuple(members.values()))


def _host(where: str, entry: str) -> Host:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        hint, nearly = "Write a line for each host: node1 slots=8", _NEARLY.match(entry)
        if nearly is not None and not any(mark in entry.split(maxsplit=1)[0] for mark in "[],"):
            host, slots = nearly.groups()
            hint = f"Did you mean: {host} slots={slots}" if slots else f"For eight ranks write: {host} slots=8"
        msg = f"{where}: '{entry}' is not HOST slots=RANKS.\n{hint}"
        raise LaunchError(msg)
    if int(found[2]) == 0:
        msg = f"{where}: {found[1]} has no slots, so no rank would run there.\nGive it slots, or put # before the line."
        raise LaunchError(msg)
    return Host(found[1], int(found[2]))
