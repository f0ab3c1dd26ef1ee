"""Exit code of `pretrain align` after a crash: 1 is that of sides that differ."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pretrain.errors import PretrainError
from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_COMPARED = ExitCode.PARTIAL
"""Exit code where a side, or the comparison, has crashed."""


@contextmanager
def crashes_exit_with_3() -> Iterator[None]:
    """Show the traceback of an exception that is no user's mistake, and exit with `NOT_COMPARED`."""
    try:
        yield
    except (PretrainError, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:  # shown by `pretrain.cli.main`
            raise
        traceback.print_exception(error)
        sys.exit(NOT_COMPARED)
