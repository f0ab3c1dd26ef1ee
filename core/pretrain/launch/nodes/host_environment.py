"""Environment variables that `--hostfile` sets on every node, and the file that brings them there.

Their values may be secrets, and every user of a machine can read the command lines of its processes. ssh hands on
neither an environment nor an input here; what all hosts have in common is the folder of the run.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.report.environment_file import COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.plugins.backend import Backend


_APPEARANCE_TIMEOUT = 60  # seconds that a network file system gets to show the file on another host
_OPEN = """\
fail() { echo "$(uname -n): $1" >&2; exit 2; }
(n=SECONDS; until [ -e "$0" ] || [ $n -le 0 ]; do n=$((n - 1)); sleep 1; done)
[ -e "$0" ] || fail "$0 is not there: all hosts must see the folder of the run."
[ -r "$0" ] || fail "$(id -un) cannot read $0: log in there as the user who starts the run."
exec 3<"$0"
"""
_REQUIRE_OWNER = """\
[ -O /dev/fd/3 ] || fail "$0 is not owned by $(id -un): log in there as the user who starts the run."
"""
_SET_AND_EXECUTE = '. /dev/fd/3; exec 3<&-; exec "$@"'
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # names that a shell can set
_PREFIXES = ("PRETRAIN_", "PYTHON", "UCX", "MLFLOW", "MV2")


def exported_variables(environ: Mapping[str, str], backend: Backend) -> dict[str, str]:
    """Return the variables for all nodes: those of .deepspeed_env win over those of this process."""
    prefixes = (*_PREFIXES, *backend.exported_variables)
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(prefixes) and name not in backend.own_variables
    }
    found |= {COMMAND: shlex.join(sys.argv), "PYTHONUNBUFFERED": "1"}
    return found | _variables_of_files(environ)


def warn_of_own_variables(environ: Mapping[str, str], backend: Backend) -> None:
    """Name on stderr the variables that stay here because they are true of one host alone."""
    kept = [name for name in backend.own_variables if name in environ]
    if kept:
        sys.stderr.write(
            f"--hostfile keeps {', '.join(kept)} from the ranks: true of one host alone.\n"
            "Set it on each host, or in .deepspeed_env where it is the same on all.\n"
        )


def _variables_of_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Read lines NAME=VALUE of .deepspeed_env in the home and in the working directory; the latter wins."""
    found: dict[str, str] = {}
    name = environ.get("DS_ENV_FILE", ".deepspeed_env")
    for path in (Path(os.path.expanduser("~"), name), Path(name)):  # noqa: PTH111  Path.home() fails without a home
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            variable, equals, value = line.partition("=")
            if not equals or not NAME.fullmatch(variable.strip()):
                msg = (
                    f"{path}, line {number}: '{line}' is not NAME=VALUE.\n"
                    "Write a variable a line, without `export`; a name has the letters A to Z, digits and _."
                )
                raise LaunchError(msg)
            found[variable.strip()] = value.strip()
    return found


@contextmanager
def variables_file(folder: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write a shell script that exports the variables, for its owner alone; remove it when the block ends."""
    try:
        path = _write(folder.absolute(), variables)
    except OSError as error:
        msg = (
            f"{folder} cannot be written: {error.strerror}.\nThe hosts read their variables there; pass --run-dir DIR."
        )
        raise LaunchError(msg) from error
    try:
        yield path
    finally:
        remove(path)


def remove(path: Path) -> None:
    """Remove the file, if it is still there; a file system that fails now must not hide how the run ended."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def with_variables(path: Path, command: list[str]) -> list[str]:
    """Return the command with the variables of the file; a shell sets them, since some count when Python starts."""
    # On some network file systems root's files belong to nobody, on this host too.
    owned = not path.exists() or path.stat().st_uid == os.geteuid()
    check = _REQUIRE_OWNER if owned else ""
    script = _OPEN.replace("SECONDS", str(_APPEARANCE_TIMEOUT)) + check + _SET_AND_EXECUTE
    return ["sh", "-c", "; ".join(script.splitlines()), str(path), *command]


def _write(folder: Path, variables: Mapping[str, str]) -> Path:
    descriptor, path = tempfile.mkstemp(prefix=".variables-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.writelines(
                f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if NAME.fullmatch(name)
            )
    except OSError:
        remove(Path(path))
        raise
    return Path(path)
