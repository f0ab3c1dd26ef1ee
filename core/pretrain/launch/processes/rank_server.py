"""Server process that imports once what ranks need, and forks them: `rank_server SOCKET JOB`. The launcher starts it.

It has one thread and no open device; where imports have started or opened one, it says so, and nothing is forked. A
rank becomes a child of the launcher, as if that had started it: by way of a process that ends at once, whose children
the launcher takes (PR_SET_CHILD_SUBREAPER of prctl(2)). So a rank outlives the server.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

_LARGEST = 2**20  # bytes of a request: environment variables
_SET_NAME = 15  # PR_SET_NAME of linux/prctl.h
_PLAIN = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/")
"""Beginnings of the paths of devices that a process and its forks may share."""
_SAFE_THREADS = {"jemalloc_bg_thd"}
"""Names of threads with which a process may fork: jemalloc (that of pyarrow, which DeepSpeed imports where it is
installed) holds its locks during a fork, and counts the thread as ended in it (jemalloc/src/background_thread.c)."""
READY = b"ready"


def hazard() -> str:
    """Return why this process cannot be forked, its threads or open devices; "" if it can."""
    own = Path("/proc/self")
    tasks = [task for task in (own / "task").iterdir() if task.name != str(os.getpid())]
    if names := [name for task in tasks if (name := (task / "comm").read_text().strip()) not in _SAFE_THREADS]:
        return f"imports have started {len(names)} thread{'s' * (len(names) > 1)} ({', '.join(sorted(set(names)))})"
    for link in (own / "fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            target = str(link.readlink())
            if int(link.name) > 2 and target.startswith("/dev/") and not target.startswith(_PLAIN):
                return f"imports have opened {target}"
    return ""


def main() -> None:
    """Import, and fork a rank for each request until the launcher closes the socket; in a rank, train."""
    from pretrain.launch.job import job_of  # noqa: PLC0415  workers of a rank import this module, and need nothing
    from pretrain.launch.processes import rank  # noqa: PLC0415
    from pretrain.launch.processes.parent_exit import kill_on_parent_exit  # noqa: PLC0415

    kill_on_parent_exit(int(os.environ[rank.PARENT]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        job_of(sys.argv[2]).import_modules()
    except Exception as error:  # noqa: BLE001  the ranks, started by themselves, meet it again and report it
        connection.send(f"the imports failed: {type(error).__name__}: {error}"[:200].encode())
        return
    warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)  # Python 3.12, at a fork
    gc.collect()
    gc.freeze()  # no collection writes to the pages that the ranks share
    connection.send(hazard().encode() or READY)
    request = _serve(connection)
    if request is not None:
        connection.close()
        _become_rank(request)
        sys.argv[:] = [rank.__file__, request["job"]]
        rank.main()


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests; return the one of the rank that this process has become, None in the server at its end."""
    while message := connection.recv(_LARGEST):
        request: dict[str, Any] = json.loads(message)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(reader)
            if _is_forked():
                _answer_as_rank(connection, request, writer)
                return request
            os._exit(0)
        os.close(writer)
        os.waitpid(between, 0)  # from now on the launcher has the rank
        if not os.read(reader, 1):
            connection.send(f"{request['number']} no process could be started".encode())
        os.close(reader)
    return None


def _answer_as_rank(connection: socket.socket, request: dict[str, Any], writer: int) -> None:
    """Tell the launcher, and then the server, that this process has become a rank."""
    # The rank answers itself: where the server is killed meanwhile, the launcher does not start another.
    try:
        connection.send(f"{request['number']} {os.getpid()}".encode())
    except OSError:  # the launcher has given it up
        os._exit(0)
    with suppress(BrokenPipeError):
        os.write(writer, b"1")
    os.close(writer)


def _is_forked() -> bool:
    """Fork once more; return True in that process, when the launcher is its parent."""
    between = os.getpid()
    with suppress(OSError):
        if os.fork():
            return False
        while os.getppid() == between:
            time.sleep(0.001)
        return True
    return False


def _become_rank(request: dict[str, Any]) -> None:
    """Give this process what a started one would have: a session, variables, a seed of its own, a name for `ps`."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["variables"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(None)  # Python seeds `random` by itself; torch's seed is a constant
    ctypes.CDLL(None).prctl(_SET_NAME, f"rank {os.environ['RANK']}".encode(), 0, 0, 0)


if __name__ == "__main__":
    main()
