"""The commands of a page, run one after the other as they stand."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"pretrain": "pretrain.cli.main", "tensorboard": "tensorboard.main", "python": None}
_PATIENCE = 1800  # seconds for a command, on a machine that does much else
_NUMBER = re.compile(r"[-+]?\d[\d.,:e+-]*")


@dataclass(frozen=True)
class Step:
    """A block of a page: a file that the reader saves, commands, or what they print."""

    kind: str  # "file", "commands" or "output"
    text: str
    name: str = ""  # of the file


def steps(page: str) -> Iterator[Step]:
    """Yield the blocks of a page in their order."""
    for language, title, text in _BLOCK.findall(page):
        if title:
            yield Step("file", text, title)
        elif language == "sh":
            yield Step("commands", text)
        elif not language:
            yield Step("output", text)


def commands(step: Step) -> list[str]:
    """Return the commands of a block, continued lines joined and comments dropped."""
    lines = step.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


@dataclass
class Reader:
    """Someone who follows a page in a folder, with this environment's programs on PATH."""

    folder: Path
    printed: str = ""
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the programs that `.venv/bin` has."""
        programs = self.folder / "bin"
        programs.mkdir()
        for name, module in _PROGRAMS.items():
            start = shlex.join([sys.executable, *(["-m", module] if module else [])])
            (programs / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            (programs / name).chmod(0o755)

    def give(self, command: str, *, until: str | None = None) -> int:
        """Give a command, and press Ctrl-C once it has printed `until`; return its exit code."""
        environment = os.environ | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        log = self.folder / "printed.log"
        with log.open("w+") as file, subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=environment, stdout=file, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            deadline = time.monotonic() + _PATIENCE
            while until and not re.search(until, log.read_text()) and time.monotonic() < deadline:
                if process.poll() is not None:
                    break
                time.sleep(0.2)
            if until and process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                self.ended.append(command)
            try:
                code = process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        self.printed += log.read_text()
        return code

    def has_seen(self, line: str) -> bool:
        """Say whether a line that a page shows was printed, but for its numbers and what the page cuts off."""
        return _without_numbers(line.removesuffix("...").rstrip(" |")) in _without_numbers(self.printed)


def _without_numbers(text: str) -> str:
    return re.sub(r"[ #]+", " ", _NUMBER.sub("#", text))
