"""Compiles `device.cpp` and loads it. torch is not imported here: the library has to be there before it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
BUILT = Path(__file__).parents[4] / "build" / "fake_gpu"


def load() -> None:
    """Let torch's CPU build have a device cuda, in this process."""
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)


def library() -> Path:
    """Return the compiled library; it is compiled again when the source or torch has changed."""
    torch = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    checksum = hashlib.sha256(SOURCE.read_bytes() + version("torch").encode()).hexdigest()[:16]
    built = BUILT / f"device-{checksum}.so"
    if not built.is_file():
        BUILT.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "g++"), "-O1", "-w", "-std=c++20", "-shared", "-fPIC", str(SOURCE)]
        command += [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
        command += [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-ltorch_cpu", "-lc10", "-o", str(unfinished)]
        if not shutil.which(command[0]):
            sys.exit(
                f"The fake GPU needs a C++ compiler, and there is no {command[0]}. Install g++ 11 or later, or set CXX."
            )
        subprocess.run(command, check=True)
        unfinished.rename(built)  # in one step: other ranks may be compiling it too
    return built
