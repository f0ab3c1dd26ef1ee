"""Commands that are run for real, with stubs in the place of the programs of a training."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.cell.places import Places
from pretrain.tools.migrate.cell.reader import script_of
from pretrain.tools.migrate.cell.script_records import parse_record
from pretrain.tools.migrate.cell.stubs import write_stubs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.cell.reader import Script


def capture(command: Sequence[str]) -> Script:
    """Run a command whose training programs are stubs, and return what it would start.

    Args:
        command: such as ("bash", "train.sh").

    Raises:
        MigrateError: there is no such program, or no bash for the stubs.
    """
    bash = shutil.which("bash")
    if bash is None:
        msg = "--capture: there is no bash here, which its stubs need.\nGive the training's log, or its arguments."
        raise MigrateError(msg)
    with tempfile.TemporaryDirectory(prefix="pretrain-capture-") as folder:
        state = Path(folder)
        (state / "records").mkdir()
        stubs = write_stubs(state, bash, captures=True)
        environment = {
            **os.environ,
            "PATH": f"{stubs}:{os.environ.get('PATH', '')}",
            "CELL_REAL": "1",
            "CELL_SEEN": "0",
        }
        try:
            done = subprocess.run(command, env=environment, check=False)
        except OSError as error:
            msg = f"--capture: {command[0]} cannot be started: {error.strerror}.\nGive a command: -- bash train.sh"
            raise MigrateError(msg) from error
        records = {path.name: parse_record(path.read_bytes()) for path in (state / "records").iterdir()}
    script = script_of(records, Places(shlex.join(command), "", "", ()))
    ended = [f"{shlex.join(command)}: it ended with exit code {done.returncode}"] if done.returncode else []
    return replace(script, notices=(*script.notices, *ended))
