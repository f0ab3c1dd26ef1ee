"""Exits out of the middle of a rank's work."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pretrain.exit_codes import WELL

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def early_exit_fails() -> Iterator[None]:
    """Make an error of a `sys.exit` within a block whose code would say that its work is done.

    Raises:
        RuntimeError: a plugin or a library has called it; the cause's traceback shows where.
    """
    try:
        yield
    except SystemExit as left:
        if left.code not in {None, *WELL}:
            raise
        msg = f"sys.exit({'' if left.code is None else left.code}) was called before this rank had done its work"
        raise RuntimeError(msg) from left
