"""Programs that need an environment or processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "processes"


def run(name, ranks=0, **environment):
    """Run processes/<name>.py, on its own or as ranks, and return what each process printed."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0", "--redirects", "0"]
    command = [sys.executable, "-W", "ignore", *(launcher if ranks else []), str(PROGRAMS / f"{name}.py")]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [
        json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if line.startswith("RESULT ")
    ]
    return sorted(found, key=lambda result: result.get("rank", 0))
