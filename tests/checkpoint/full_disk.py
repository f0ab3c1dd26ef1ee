"""A disk that is full after some bytes of a checkpoint's sharded files, or refuses at the flush."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager

from pretrain.checkpoint.checksums import DigestingFile

MESSAGE = "[Errno 28] No space left on device"


def fill(monkeypatch, after=20_000):
    """Let the writer of sharded files fail after so many bytes; common.pt still has room."""
    write, written = DigestingFile.write, []

    def write_while_there_is_room(self, data):
        written.append(memoryview(data).nbytes)
        if sum(written) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    monkeypatch.setattr(DigestingFile, "write", write_while_there_is_room)


def fill_at_the_flush(monkeypatch):
    """Let the writer of sharded files fail when it flushes, as quotas and network disks do."""

    def refuse(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DigestingFile, "fileno", refuse)


@contextmanager
def files_of_at_most(size):
    """Let the system refuse what exceeds so many bytes of any file of this process (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
