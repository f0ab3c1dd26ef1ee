"""Locked memory (mlock), which is limited per process."""

from __future__ import annotations

import ctypes
import mmap

_ON_FAULT = 1  # MLOCK_ONFAULT of <sys/mman.h>


def can_lock(size: int) -> bool:
    """Say whether this process may lock `size` more bytes; no page is touched, so that it takes no time.

    The system decides: the limit (`ulimit -l`) does not apply to every user. A system without mlock2 is taken to
    allow it.
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
