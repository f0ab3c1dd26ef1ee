"""A process without TRITON_INTERPRET, which the tests' own process has: it answers each line of JSON with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


class Server:
    """Answers one question after the other."""

    def __init__(self, module: str, cache: Path) -> None:
        """Start.

        Args:
            module: run with `-m`; prints a line when it is ready, and one for each that it reads.
            cache: where Triton keeps what it compiles.
        """
        variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=Path(__file__).parents[1],
            env=variables | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(cache)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._module = module
        self._read("being ready")
        self._answers: dict[str, dict] = {}

    def run(self, job: dict) -> dict:
        """Return the answer, or the error; the same job is run once."""
        question = json.dumps(job)
        if question not in self._answers:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
            self._answers[question] = json.loads(self._read("giving an answer"))
        return self._answers[question]

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self, what: str) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended instead of {what}")
        return line
