"""Extensions of DeepSpeed: C++ that torch compiles at the first use and caches in a folder of the user."""

from __future__ import annotations

import fcntl
import importlib
import os
import shlex
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.machine import restored_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """An extension of DeepSpeed."""

    name: str  # DeepSpeed's, and that of its folder
    builder: str  # class in deepspeed.ops.op_builder
    title: str  # in messages
    duration: str  # of compiling, as a phrase
    library: str | None = None  # that its builder looks for at every load, and the packages that have it
    first: Extension | None = None  # another that its builder loads before it


CPU_ADAM = Extension(name="cpu_adam", builder="CPUAdamBuilder", title="CPU Adam", duration="about a minute")


def load_extension(extension: Extension, notify: Callable[[str], None]) -> str | None:
    """Load an extension, compiled first if needed; return why it is not available. The bridge has imported DeepSpeed.

    One process compiles; all others wait, those of other runs too. If it is killed, the next one compiles.
    """
    name = extension.name
    builder = getattr(importlib.import_module("deepspeed.ops.op_builder"), extension.builder)()
    if name != builder.NAME:
        return f"DeepSpeed has no {extension.title} for this device"
    if importlib.import_module("deepspeed.git_version_info").installed_ops.get(name, False):
        return _load(builder)
    try:
        folder = Path(importlib.import_module("torch.utils.cpp_extension")._get_build_directory(name, False))  # noqa: SLF001
        library = folder / f"{name}.so"
        with _environment(checks_compiler=not library.exists()):
            return (
                _missing(extension, builder, library)
                or (extension.first and load_extension(extension.first, notify))
                or _compile(extension, builder, library, notify)
            )
    except OSError as error:
        return f"its folder cannot be written: {error}"


def _missing(extension: Extension, builder: Any, library: Path) -> str | None:
    """Return what is missing; a compiled extension needs the compiler only to look for its library."""
    compiler = os.environ.get("CXX", "c++")  # get_cxx_compiler() of torch/utils/cpp_extension.py
    compiles = extension.library is not None or not library.exists()
    if compiles and not shutil.which((shlex.split(compiler) or [""])[0]):
        return f"there is no C++ compiler ({compiler})"
    if not shutil.which("ninja"):
        return "ninja is missing"
    return None if extension.library is None or builder.is_compatible() else f"{extension.library} is missing"


def _compile(extension: Extension, builder: Any, library: Path, notify: Callable[[str], None]) -> str | None:
    before = _written(library)
    if before is None:
        notify(f"compiling DeepSpeed's {extension.title}; this is done once and takes {extension.duration} ...")
    start = time.monotonic()
    with (library.parent / "turn").open("a+") as turn:
        problem = _take(turn, library.parent) or _load(builder)
        turn.truncate(0)
        turn.write(problem or "")
    if _written(library) != before and problem is None:
        notify(f"compiled DeepSpeed's {extension.title} in {time.monotonic() - start:.0f} s")
    return problem


def _take(turn: Any, folder: Path) -> str:
    """Wait until no other process compiles; return its failure, so that not every rank tries again."""
    # The system releases this lock when a process is killed. torch's own (FileBaton) is a file: it stays, and the next
    # process waits forever.
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
    """Put the ninja that DeepSpeed installs beside this Python on PATH, first: another version rebuilds everything."""
    with restored_variables("PATH", "TORCH_DONT_CHECK_COMPILER_ABI"):
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if not checks_compiler:  # it is checked only before it compiles
            os.environ["TORCH_DONT_CHECK_COMPILER_ABI"] = "1"
        yield
