"""File of the environment variables that `--hostfile` sets on every node.

Their values may be secrets, and every user of a machine can read the command lines of its processes. ssh hands on
neither an environment nor an input here; what all hosts have in common is the folder of the run.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SET_AND_EXECUTE = (
    '[ -r "$0" ] || { echo "$(uname -n) cannot read $0: all hosts must see the folder of the run." >&2; exit 2; }; '
    '. "$0"; exec "$@"'
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Names that a shell can set."""


@contextmanager
def variables_file(folder: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write a shell script that exports the variables, for its owner alone; remove it when the block ends.

    Raises:
        LaunchError: the folder cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=".variables-", dir=folder.absolute())
    except OSError as error:
        msg = (
            f"{folder} cannot be written: {error.strerror}.\nThe hosts read their variables there; pass --run-dir DIR."
        )
        raise LaunchError(msg) from error
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.writelines(
                f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if _NAME.fullmatch(name)
            )
        yield path
    finally:
        path.unlink(missing_ok=True)


def with_variables(path: Path, command: list[str]) -> list[str]:
    """Return the command with the variables of the file; a shell sets them, since some count when Python starts."""
    return ["sh", "-c", _SET_AND_EXECUTE, str(path), *command]
