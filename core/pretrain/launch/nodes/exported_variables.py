"""Choice of the environment variables that `--hostfile` sets on every node."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.nodes.variables_file import NAME
from pretrain.report.environment_file import COMMAND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.backend import Backend

_PREFIXES = ("PRETRAIN_", "PYTHON", "UCX", "MLFLOW", "MV2")


def exported_variables(environ: Mapping[str, str], backend: Backend) -> dict[str, str]:
    """Return the variables for all nodes: those of .deepspeed_env win over those of this process.

    Raises:
        LaunchError: .deepspeed_env has a malformed line.
    """
    prefixes = (*_PREFIXES, *backend.exported_variables)
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(prefixes) and name not in backend.own_variables
    }
    found |= {COMMAND: shlex.join(sys.argv), "PYTHONUNBUFFERED": "1"}
    if not sys.stdout.isatty():
        found["TTY_COMPATIBLE"] = "0"  # mpirun gives the nodes a terminal, whose progress bars would be in a log
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
