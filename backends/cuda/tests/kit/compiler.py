"""A process of Python in which Triton compiles, while it interprets in that of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_compiler(cache: Path, *arguments: object) -> str:
    """Run Python with these arguments in the folder of the tests; return what it prints.

    Args:
        cache: where Triton keeps what it compiles.
        arguments: "-m", a module and its arguments; or a file and its arguments.
    """
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=variables | {"TRITON_CACHE_DIR": str(cache)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
