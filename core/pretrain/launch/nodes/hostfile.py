"""Hosts of a run, from a hostfile in DeepSpeed's format."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ENTRY = re.compile(r"([^\s\[\],#]+)\s+slots=(\d+)(\s.*)?")
"""As deepspeed/launcher/runner.py reads it; what follows (`max_slots=8`) is for mpirun. No brackets or commas: pdsh
would make several hosts of them, while DeepSpeed counts one."""
_NEARLY = re.compile(r"([^\s\[\],#:=]+)(?:(?:\s+|:)(?:slots?\s*[=:]?\s*)?(\d+))?", re.IGNORECASE)
"""What else people write: `host slot=8`, `host slots = 8`, `host:8`, `host 8`, `host`."""


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
    members: dict[str, Host] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        host = _host(f"{path}, line {number}", entry)
        if host.name in members:
            msg = (
                f"{path}, line {number}: {host.name} is there already, in line {lines[host.name]}.\n"
                f"Give each host one line with all its ranks: {host.name} slots={members[host.name].slots + host.slots}"
            )
            raise LaunchError(msg)
        members[host.name], lines[host.name] = host, number
    if not members:
        msg = f"{path} names no host.\nWrite a line for each, with its ranks: node1 slots=8"
        raise LaunchError(msg)
    return Hosts(file=path.absolute(), members=tuple(members.values()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text file"
        msg = f"--hostfile {path} cannot be read: {reason}.\nIt has a line for each host, with its ranks: node1 slots=8"
        raise LaunchError(msg) from error


def _host(where: str, entry: str) -> Host:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        msg = f"{where}: '{entry}' is not HOST slots=RANKS.\n{_hint(entry)}"
        raise LaunchError(msg)
    if int(found[2]) == 0:
        msg = f"{where}: {found[1]} has no slots, so nothing would run there.\nGive it ranks, or put # before the line."
        raise LaunchError(msg)
    return Host(found[1], int(found[2]))


def _hint(entry: str) -> str:
    nearly = _NEARLY.match(entry)
    if nearly is None or any(mark in entry.split(maxsplit=1)[0] for mark in "[],"):
        return "Write a line for each host: node1 slots=8"
    host, slots = nearly.groups()
    return f"Did you mean: {host} slots={slots}" if slots else f"For eight ranks write: {host} slots=8"
