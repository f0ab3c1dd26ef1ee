"""DeepSpeed's CPU Adam is C++ that torch compiles at its first use, and keeps in a folder of the user."""

from __future__ import annotations

import fcntl
import importlib
import os
import shlex
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = "cpu_adam"


def load_extension(tell: Callable[[str], None]) -> str | None:
    """Load the extension on this rank, compiling it where that was never done; the bridge has imported DeepSpeed.

    One process compiles and the others wait for it, also those of other runs. It goes on where another was killed.

    Args:
        tell: is given what the user should know: that something is compiled, and how long it took.

    Returns:
        why the extension cannot be had; None if it is loaded.
    """
    builder = importlib.import_module("deepspeed.ops.op_builder").CPUAdamBuilder()
    if importlib.import_module("deepspeed.git_version_info").installed_ops.get(_NAME, False):
        return _load(builder)
    try:
        folder = Path(importlib.import_module("torch.utils.cpp_extension")._get_build_directory(_NAME, False))  # noqa: SLF001
        library = folder / f"{_NAME}.so"
        with _environment(checks_compiler=not library.exists()):
            return _missing(library) or _compile(builder, library, tell)
    except OSError as error:
        return f"its folder cannot be written: {error}"


def _missing(library: Path) -> str | None:
    """Return what is not here and needed for compiling; what is compiled needs no compiler any more."""
    compiler = os.environ.get("CXX", "c++")  # get_cxx_compiler() of torch/utils/cpp_extension.py
    if not library.exists() and not shutil.which((shlex.split(compiler) or [""])[0]):
        return f"there is no C++ compiler ({compiler})"
    return None if shutil.which("ninja") else "ninja is missing"


def _compile(builder: Any, library: Path, tell: Callable[[str], None]) -> str | None:
    before = _written(library)
    if before is None:
        tell("compiling DeepSpeed's CPU Adam; this is done once and takes about a minute ...")
    start = time.monotonic()
    with (library.parent / "turn").open("a+") as turn:
        problem = _take(turn, library.parent) or _load(builder)
        turn.truncate(0)
        turn.write(problem or "")
    if _written(library) != before and problem is None:
        tell(f"compiled DeepSpeed's CPU Adam in {time.monotonic() - start:.0f} s")
    return problem


def _take(turn: Any, folder: Path) -> str:
    """Wait until no other process compiles; return what it failed with, so that not every rank tries it again.

    The system takes this lock from a process that is killed. torch's own is a file: it stays, and the next process
    waits for it for ever (torch/utils/file_baton.py).
    """
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        return str(turn.read())
    except OSError:
        return ""  # a file system without locks
    (folder / "lock").unlink(missing_ok=True)
    return ""


def _load(builder: Any) -> str | None:
    try:
        builder.load(verbose=False)
    except Exception as error:  # noqa: BLE001  torch raises whatever the compiler's failure led to
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"compiling failed: {next((line for line in lines if ' error: ' in line), lines[0])}"
    return None


def _written(library: Path) -> float | None:
    return library.stat().st_mtime if library.exists() else None


@contextmanager
def _environment(*, checks_compiler: bool) -> Iterator[None]:
    """Let torch find the ninja that DeepSpeed installs beside this Python, whose environment may not be activated.

    It comes first: ninja begins anew where one of another version was at work. The compiler is asked for its version
    only before it compiles.
    """
    before = {name: os.environ.get(name) for name in ("PATH", "TORCH_DONT_CHECK_COMPILER_ABI")}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before['PATH'] or ''}"
    if not checks_compiler:
        os.environ["TORCH_DONT_CHECK_COMPILER_ABI"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
