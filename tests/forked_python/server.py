"""Server process that others are forked from; it has one thread: `python -m forked_python.server SOCKET BACKEND`."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import NoReturn

import numpy as np

from forked_python import client

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of sys/prctl.h
_STREAMS = 3
_execv = os.execv
_unfreeze = gc.unfreeze
_searched: list[str] = []
BACKENDS = {"cpu": ("pretrain.cpu", "CpuBackend"), "ascend": ("pretrain_ascend", "AscendBackend")}
MODULES = (
    "pretrain.engine.build",
    "pretrain.launch.job",
    "pretrain.recipe",
    "pretrain.training.assembly",
    "psutil",
    "torch._inductor",  # imported by torch.use_deterministic_algorithms
    "torch.utils.tensorboard",
)


def load(backend: str) -> None:
    """Import what takes long, and nothing that is a program."""
    from pretrain.bridge import megatron

    package, name = BACKENDS[backend]
    megatron.install(getattr(importlib.import_module(f"{package}.backend"), name)())
    for module in (f"{package}.plugin", *MODULES):
        importlib.import_module(module)


def serve(connection: socket.socket, backend: str) -> client.Job:
    """Fork a process for each request, until the last client closes; in each of these, return what it has to run."""
    while True:
        message, streams, _, _ = socket.recv_fds(connection, 1_000_000, _STREAMS)
        if not message:
            os._exit(0)
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            connection.send(b"the process that forks Python processes has threads")
            continue
        job = client.Job(**json.loads(message))
        if not _fork(connection):
            for stream in streams:
                os.close(stream)
            continue
        connection.close()
        if job.new_session:
            os.setsid()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:  # the server of this process, for what it starts
            for stream in streams:
                os.close(stream)
            ours.close()
            connection = its
            _end_with_parent()
            continue
        its.close()
        client.connect(backend, ours)
        _take(streams)
        return job


def _fork(connection: socket.socket) -> bool:
    """Fork a child of the requesting process, and send its id. Return True in the child, and False here."""
    waits, goes = os.pipe()
    told, tells = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        os.close(goes)
        os.write(tells, str(os.getpid()).encode())
        os.read(waits, 1)  # until the process between has ended
        for end in (waits, told, tells):
            os.close(end)
        return True
    os.waitpid(between, 0)
    os.close(tells)  # else this read would never end where the second fork has failed
    connection.send(os.read(told, 100) or b"no process could be forked")
    for end in (goes, waits, told):
        os.close(end)
    return False


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STREAMS):
        os.dup2(nothing, stream)
    os.close(nothing)


def _take(streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


def _nothing() -> None: ...


def _customize() -> None:
    """Import the `sitecustomize` that the interpreter would import at its start."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def _exec(path: str, words: list[str]) -> None:
    """Replace the program as `os.execv` does; one of Python goes on in this process."""
    job = client.Job.read(words) if path == sys.executable else None
    if job is None:
        _execv(path, words)
        return
    job.environment, job.folder = dict(os.environ), str(Path.cwd())
    run(job)
    sys.exit()


def run(job: client.Job) -> None:
    """Run the command as the interpreter does."""
    os.environ.clear()
    os.environ.update(job.environment)
    np.random.seed(None)  # torch's and Python's are given; a forked numpy would draw the same numbers in every rank
    os.chdir(job.folder)
    for action in job.warnings:
        warnings.simplefilter(action)
    if job.unbuffered:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.execv = _exec  # type: ignore[assignment]
    # What was imported before stays frozen, or the first collection after a training would search it, for a second.
    gc.freeze = gc.unfreeze = _nothing  # type: ignore[assignment]
    first = {"module": str(Path.cwd()), "code": "", "script": str(Path(job.what).resolve().parent)}[job.kind]
    paths = [path for path in job.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ([] if job.safe_path else [first]) + paths + _searched
    _customize()
    sys.argv[:] = [{"module": "-m", "code": "-c", "script": job.what}[job.kind], *job.arguments]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if job.kind == "module":
        sys.modules.pop(job.what, None)
        runpy._run_module_as_main(job.what)  # type: ignore[attr-defined]
        return
    text, name = job.what, "<string>"
    if job.kind == "script":
        main.__file__ = name = str(Path(job.what).absolute())
        text = Path(name).read_text(encoding="utf-8")
    exec(compile(text, name, "exec"), main.__dict__)


def end(code: object) -> NoReturn:
    """End as the interpreter does, but for its modules: to free what was imported before the fork takes 0.2 s.

    Args:
        code: of a `SystemExit`.
    """
    if code is not None and not isinstance(code, int):
        with contextlib.suppress(OSError):
            print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, before the functions of atexit
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream and not stream.closed:
                stream.flush()
        except OSError:  # nobody reads it
            code = 120
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _connection, _backend = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subprocess.Popen = client.Popen  # type: ignore[misc]  # before modules that import it by its name, as torchrun's
        # without the folder that is current, and PYTHONPATH, which may be that of a test
        _searched = sys.path[1 + len(os.environ["PYTHONPATH"].split(os.pathsep)) :]
        load(_backend)  # torch 2.9's adds a temporary folder
    gc.collect()
    gc.freeze()
    try:
        run(serve(_connection, _backend))
    except SystemExit as _ended:
        end(_ended.code)
    except BaseException:
        _unfreeze()  # else Triton's bindings report what is frozen as leaks, below the traceback
        raise
    end(None)
