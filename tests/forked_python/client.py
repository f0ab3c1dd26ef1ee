"""`subprocess.Popen` whose Python processes are forked: each saves the three seconds of the imports.

A process started so is a child of the process that asked, with its own environment, folder, streams and session, as
any other; its command is read as the interpreter would read it. What it starts by `subprocess` is forked as well.
A command that cannot be forked (another program, `preexec_fn`, an unusual option) is started as usual.
Two things differ. gc.freeze and gc.unfreeze do nothing, so that what was imported before is never searched for garbage.
And it ends by os._exit, after the functions of atexit and flushing its output: what fails while the interpreter frees
modules is seen only in processes that are started.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

STARTED, _EXECV, _FREEZE, _UNFREEZE = subprocess.Popen, os.execv, gc.freeze, gc.unfreeze
_SIGNATURE = inspect.signature(STARTED._execute_child)  # type: ignore[attr-defined]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of sys/prctl.h
_UNUSUAL = ("preexec_fn", "shell", "pass_fds", "gid", "gids", "uid")
BACKEND = "FORKED_PYTHON_BACKEND"
"""Variable of a command's environment: the backend whose device megatron-core was imported for; "cpu" without it."""
_lock = threading.Lock()
_servers: dict[str, socket.socket] = {}


@dataclass
class Job:
    """A command of Python.

    Attributes:
        kind: "module", "code" or "script".
        what: its name, text or path.
        arguments: those after it.
        warnings: those of `-W`.
        safe_path: as of `-P`.
        unbuffered: as of `-u`.
        environment: all variables.
        folder: the working directory.
        new_session: as of `subprocess.Popen`.
    """

    kind: str
    what: str
    arguments: list[str]
    warnings: list[str]
    safe_path: bool = False
    unbuffered: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    new_session: bool = False

    @staticmethod
    def read(command: list[str]) -> Job | None:
        """Read a command as the interpreter does; None where it has options that a fork cannot have."""
        job = Job("script", "", [], [])
        rest = command[1:]
        while rest:
            match rest.pop(0):
                case "-P":
                    job.safe_path = True
                case "-u":
                    job.unbuffered = True
                case "-W":
                    job.warnings.append(rest.pop(0))
                case "-m" | "-c" as option:
                    job.kind = {"-m": "module", "-c": "code"}[option]
                    job.what, *job.arguments = rest
                    return job
                case option if option.startswith("-"):
                    return None
                case script:
                    job.what, job.arguments = script, rest
                    return job
        return None


class Popen(STARTED):
    """As `subprocess.Popen`."""

    def _execute_child(self, *arguments, **options):
        given = _SIGNATURE.bind(self, *arguments, **options).arguments
        job = _job(given)
        if job is None:
            super()._execute_child(*arguments, **options)
            return
        streams = [
            own if fd == -1 else fd for own, fd in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))
        ]
        self.pid = _fork(job, streams)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[end] for end in ends))


def _job(given: dict) -> Job | None:
    """Return what can be forked."""
    command = given["args"]
    if isinstance(command, str | bytes | os.PathLike):
        return None
    command = [*_script(os.fsdecode(command[0]), given["env"]), *command[1:]]
    if os.fspath(command[0]) != sys.executable:
        return None
    if any(given[name] not in (None, False, ()) for name in _UNUSUAL) or given["process_group"] != -1:
        return None
    job = Job.read([os.fsdecode(part) for part in command])
    if job is not None:
        job.environment = {
            os.fsdecode(name): os.fsdecode(value)
            for name, value in (os.environ if given["env"] is None else given["env"]).items()
        }
        job.folder = str(Path(os.fsdecode(given["cwd"] or ".")).absolute())
        job.new_session = given["start_new_session"]
    return job


def _script(program: str, environment: dict | None) -> list[str]:
    """Return a program's words: those of a script whose `#!` names this interpreter begin with the interpreter."""
    path = shutil.which(program, path=(environment or os.environ).get("PATH"))
    if path is None or path == sys.executable:
        return [program]
    first = f"#!{sys.executable}\n".encode()
    with Path(path).open("rb") as file:
        return [sys.executable, path] if file.read(len(first)) == first else [program]


def _fork(job: Job, streams: list[int]) -> int:
    """Have the server fork a child of this process; return its id."""
    prctl = ctypes.CDLL(None).prctl
    with _lock:
        backend = job.environment.get(BACKEND, "cpu")
        server = _servers.get(backend) or _start_server(backend)
        prctl(_SUBREAPER, 1, 0, 0, 0)  # it is forked twice: the process between ends, and this one is its parent then
        try:
            socket.send_fds(server, [json.dumps(asdict(job)).encode()], streams)
            answer = server.recv(10_000)
        finally:
            prctl(_SUBREAPER, 0, 0, 0, 0)
    if not answer.isdigit():
        raise RuntimeError(answer.decode() or "the process that forks Python processes has ended")
    return int(answer)


def _start_server(backend: str) -> socket.socket:
    """Start the process that forks this backend's for this one; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
    with its:
        STARTED(
            [sys.executable, "-m", "forked_python.server", str(its.fileno()), backend],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
            cwd="/",
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
        )
    connect(backend, ours)
    return ours


def behave_as_started() -> None:
    """Start processes and replace programs as usual again, in a forked process that runs tests of such things."""
    for module in list(sys.modules.values()):  # some have imported it by its name
        # not by getattr, which makes lazy modules import what they have
        if vars(module).get("Popen") is Popen and module.__name__ != __name__:
            module.Popen = STARTED  # type: ignore[attr-defined]
    os.execv, gc.freeze, gc.unfreeze = _EXECV, _FREEZE, _UNFREEZE


def connect(backend: str, server: socket.socket) -> None:
    """Use this server from now on for the backend's processes."""
    _servers[backend] = server
