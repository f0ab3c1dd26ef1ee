"""The grammar of bash: shfmt reads a text, runs none of it, and tells its statements as JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from pretrain.errors import MigrateError

Json: TypeAlias = dict[str, Any]
"""A node: its "Type", its "Pos" and "End", and what is in it; what is empty or false is left out."""

_SECONDS = 10
_LARGEST = 48_000_000
_ERROR = re.compile(r"(?:.*?:)??(\d+):(\d+): (.*)", re.DOTALL)


class NotUnderstoodError(Exception):
    """A text is no script of bash."""

    def __init__(self, line: int, column: int, why: str) -> None:
        """Note where: the line from 1, the column in bytes from 1."""
        super().__init__(why)
        self.line, self.column, self.why = line, column, why


def program() -> str:
    """Return the path of shfmt, which pip installs beside Python.

    Raises:
        MigrateError: it is not installed.
    """
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    found = next((path for folder in folders if (path := shutil.which("shfmt", path=folder))), None)
    found = found or shutil.which("shfmt")
    if found is None:
        msg = "shfmt is not installed.\nShell scripts are read with it.\nInstall it: pip install shfmt-py"
        raise MigrateError(msg)
    return found


def nodes_of(text: bytes) -> Json:
    """Return the file node of a text.

    Args:
        text: in UTF-8; "Offset" in the nodes counts its bytes.

    Raises:
        NotUnderstoodError: it is no script of bash, or too large.
        MigrateError: shfmt is missing or does not run.
        RecursionError: it is nested too deep.
    """
    command = [program(), "--language-dialect", "bash", "--to-json"]
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command, input=text, stdout=output, stderr=subprocess.PIPE, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotUnderstoodError(1, 1, "reading it takes too long") from error
        except OSError as error:
            msg = f"{command[0]} cannot be started: {error.strerror}.\nShell scripts are read with it."
            msg += "\nInstall it: pip install shfmt-py"
            raise MigrateError(msg) from error
        if done.returncode:
            raise _error(done.stderr.decode("utf-8", errors="replace").strip())
        if output.tell() > _LARGEST:
            raise NotUnderstoodError(1, 1, "it is too large")
        output.seek(0)
        found: Json = json.load(output)
        return found


def _error(message: str) -> NotUnderstoodError:
    found = _ERROR.match(message)
    if found is None:
        return NotUnderstoodError(1, 1, message.split("\n", 1)[0])
    return NotUnderstoodError(int(found[1]), int(found[2]), found[3].split("\n", 1)[0])
