"""Exit codes of processes that an exception ends, and exits that come too early."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pretrain.errors import LostRanksError, NotFiniteError, PretrainError
from pretrain.exit_codes import WELL, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_STORAGE = {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN, errno.ETIMEDOUT}
_OF_STORAGE |= {errno.ECONNRESET, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
"""Errors of a file system or a disk that fails; a full disk and a folder without permission are the user's."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a process that an exception ends: a user error, or what another attempt may not meet."""
    may_pass = isinstance(error, NotFiniteError | LostRanksError) or _is_of_storage(error)
    return ExitCode.USER_ERROR if isinstance(error, PretrainError) and not may_pass else ExitCode.FAILURE


def _is_of_storage(error: BaseException) -> bool:
    """Say whether a file system that fails is behind the error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return cause is not None and cause.errno in _OF_STORAGE


@contextmanager
def early_exit_fails() -> Iterator[None]:
    """Make an error of a `sys.exit` of a plugin or a library whose code would say that the work is done."""
    try:
        yield
    except SystemExit as left:
        if left.code not in {None, *WELL}:
            raise
        msg = f"sys.exit({'' if left.code is None else left.code}) was called before this rank had done its work"
        raise RuntimeError(msg) from left
