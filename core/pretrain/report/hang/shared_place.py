"""Memory in which a rank's position survives the rank: other processes read it as a file."""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.report.hang.place_words import place_of
from pretrain.report.hang.position import SIZE, position_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.report.hang.position import Position


@contextmanager
def shared_memory(file: Path | None) -> Iterator[tuple[Any, str]]:
    """Open memory for a position, and give the path at which other processes of this host read it.

    It is written until it is let go; the file stays, for those who look for a process that has ended.

    Args:
        file: made for it, in a folder that somebody removes; None for memory that ends with the block.

    Yields:
        Memory and path; the path is empty where there is none, as on a full disk.
    """
    with ExitStack() as opened:
        memory: Any = bytearray(SIZE)
        path = ""
        with suppress(OSError, AttributeError):  # AttributeError: a system without such memory
            descriptor, name = _opened(file)
            opened.callback(os.close, descriptor)
            os.posix_fallocate(descriptor, 0, SIZE)  # a hole in a full file system would kill the process by SIGBUS
            memory, path = mmap.mmap(descriptor, SIZE), name
        yield memory, path


def _opened(file: Path | None) -> tuple[int, str]:
    if file is not None:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o600), str(file)
    descriptor = os.memfd_create("pretrain place")
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


def read_position(path: str | Path) -> Position | None:
    """Return the last position of another process of this host; None if it cannot be read."""
    try:
        return position_of(Path(path).read_bytes())
    except (OSError, struct.error, IndexError):
        return None


def last_place(path: str | Path, layers: int = 0) -> str:
    """Return the last place of another process in words, of a model with so many layers; empty if it cannot be read."""
    position = read_position(path)
    return place_of(position, layers) if position is not None else ""
