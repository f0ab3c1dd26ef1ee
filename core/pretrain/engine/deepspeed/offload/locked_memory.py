"""Memory that the system never moves to disk, of which a process may have little."""

from __future__ import annotations

import ctypes
import mmap

_ON_FAULT = 1  # MLOCK_ONFAULT of <sys/mman.h>


def can_lock(size: int) -> bool:
    """Say whether this process may lock so many bytes more; none is touched, so that it takes no time.

    It is the system's own answer: there is a limit (`ulimit -l`), which does not hold for every user. Where the system
    cannot be asked, the answer is yes.
    """
    lock = getattr(ctypes.CDLL(None), "mlock2", None)
    if lock is None or not size:
        return True
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return False
    start = ctypes.c_char.from_buffer(memory)
    try:
        return bool(lock(ctypes.byref(start), ctypes.c_size_t(size), _ON_FAULT) == 0)
    finally:
        del start
        memory.close()  # which unlocks it
