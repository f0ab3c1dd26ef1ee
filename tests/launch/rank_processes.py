"""Observation of rank processes from outside."""

import time
from pathlib import Path


def pids_of_ranks(run_dir, nproc=2):
    """Wait for the ranks to run and return their process ids."""
    files = [Path(run_dir) / f"{rank}.pid" for rank in range(nproc)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), "the ranks to run")
    return [int(file.read_text()) for file in files]


def wait_for(condition, what, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def alive(pid):
    """Say whether a process runs; a zombie does not."""
    try:
        return state(pid) != "Z"
    except FileNotFoundError:
        return False


def state(pid):
    """Return the state letter of /proc of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
