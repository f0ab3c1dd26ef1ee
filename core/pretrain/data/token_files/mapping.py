"""Map files into memory without a descriptor each, and tell the system which parts will be read.

Files are read at few places, and a disk whose read-ahead is large would read most of a file for them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path) -> npt.NDArray[np.uint8]:
    """Return the content of a file, [bytes] uint8, read-only; the file does not stay open. OSError: it cannot be."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size:
            return np.zeros(0, np.uint8)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, stream.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return np.asarray(_Mapping(address, size))


class _Mapping:
    """Mapped memory as numpy takes it. `mmap.mmap`, and so `np.memmap`, would hold a copy of the descriptor."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        weakref.finalize(self, _libc.munmap, address, size).atexit = False


def expect_few(array: npt.NDArray[Any]) -> None:
    """Tell the system that a mapped array is read at places here and there, so that it reads nothing around them."""
    _advise(array, mmap.MADV_RANDOM)


def expect(array: npt.NDArray[Any]) -> None:
    """Let the system begin to read a mapped array, or a part of one, which the caller is about to read."""
    _advise(array, mmap.MADV_WILLNEED)


def expect_in_file(descriptor: int, parts: Iterable[tuple[int, int]]) -> None:
    """Let the system begin to read these parts of an open file, (begin, end) in bytes, and nothing around them."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for begin, end in parts:
            os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)


def _advise(array: npt.NDArray[Any], advice: int) -> None:
    if not array.size:
        return
    address = array.ctypes.data
    begin = address - address % mmap.PAGESIZE
    _libc.madvise(begin, address + array.nbytes - begin, advice)  # a system that refuses it reads as it would have
