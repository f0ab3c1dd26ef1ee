"""Compile the simulator: `python -m ascend_simulator.build`. What is up to date is left alone.

Needs a C++ compiler ($CXX, else g++) and the headers that torch and torch_npu bring; neither is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ascend_simulator.places import BUILD, LIBRARIES, SOURCES, TOOLKIT

COMPILER = os.environ.get("CXX", "g++")
OPTIONS = ["-O1", "-fPIC", "-shared", "-w"]
TOOLKIT_FOLDERS = ("opp", "runtime", "compiler")


def main() -> int:
    """Build what is missing; return the exit status."""
    for folder in TOOLKIT_FOLDERS:
        (TOOLKIT / folder).mkdir(parents=True, exist_ok=True)
    stamp = LIBRARIES / "checksum"
    if stamp.is_file() and stamp.read_text() == checksum():
        return 0
    if not shutil.which(COMPILER):
        sys.stderr.write(
            f"The simulated NPU is written in C++, and there is no compiler {COMPILER}.\n"
            "Install g++ 11 or later, or set CXX to the name of another.\n"
        )
        return 2
    print("building the simulated NPU (about a minute) ...", flush=True)
    folder = Path(tempfile.mkdtemp(dir=BUILD))
    try:
        compile_libraries(folder)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder)
        sys.stderr.write("The simulated NPU could not be built; the compiler's errors are above.\n")
        return 1
    (folder / "checksum").write_text(checksum())
    folder.chmod(0o755)
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    folder.rename(LIBRARIES)
    return 0


def checksum() -> str:
    """Return what changes with the sources, the compiler and the versions that are compiled against."""
    digest = hashlib.sha256()
    for path in [*sorted(SOURCES.glob("*/*.h")), *sorted(SOURCES.glob("*/*.cpp")), SOURCES / "stubs.txt", Path(__file__)]:
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(f"{COMPILER} {version('torch')} {version('torch_npu')} {sys.version}".encode())
    return digest.hexdigest()


def compile_libraries(folder: Path) -> None:
    """Compile all libraries into a folder. Raises subprocess.CalledProcessError."""
    npu, torch = (Path(importlib.util.find_spec(name).submodule_search_locations[0]) for name in ("torch_npu", "torch"))
    acl = [f"-I{npu}/include/third_party/acl/inc", f"-I{npu}/include"]
    aten = ["-std=c++20", f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", *acl, f"-L{torch}/lib"]
    runtime = [f"-L{folder}", "-lascendcl"]

    library(folder, "ascendcl", sources("cann"), "-std=c++17", *acl, "-lpthread")
    library(folder, "hccl", sources("hccl"), "-std=c++17", *acl, *runtime)
    library(folder, "ge_runner", [write(folder, "stubs.cpp", stubs())])
    for empty in ("graph", "acl_tdt_channel"):
        library(folder, empty, [write(folder, "empty.cpp", "")])
    # torch_npu looks some functions of the runtime up in this library itself, so it must depend on the runtime.
    library(folder, "acl_op_compiler", [write(folder, "empty.cpp", "")], "-Wl,--no-as-needed", *runtime)
    library(folder, "opapi", sources("opapi"), *aten, "-ltorch_cpu", "-lc10", *runtime)
    # In one piece: torch's headers take longer than all that follows them.
    whole = write(folder, "operators.cpp", "".join(f'#include "{path}"\n' for path in sources("operators")))
    library(folder, "ascend_simulator", [whole], *aten, "-ltorch", "-ltorch_cpu", "-lc10", *runtime)


def sources(folder: str) -> list[Path]:
    """Return the C++ files of one library."""
    return sorted((SOURCES / folder).glob("*.cpp"))


def library(folder: Path, name: str, files: list[Path], *options: str) -> None:
    """Compile one shared library, known to the loader by its file's name."""
    file = f"lib{name}.so"
    subprocess.run(
        [COMPILER, *OPTIONS, *files, "-o", folder / file, f"-Wl,-soname,{file}", f"-I{SOURCES}", *options], check=True
    )


def stubs() -> str:
    """Return functions that say that they are not simulated, and the profiler's, of which nothing is wanted."""
    names = [line for line in (SOURCES / "stubs.txt").read_text().splitlines() if not line.startswith("#")]
    profiler = ("GetHashId", "RegisterCallback", "ReportAdditionalInfo", "ReportApi", "ReportCompactInfo", "SysCycleTime")
    return "\n".join(
        [
            "#include <cstdio>",
            'static int no(const char* name) { std::fprintf(stderr, "simulated CANN: %s is not simulated\\n", name);'
            " return 500000; }",
            *(f'extern "C" int {name}() {{ return no("{name}"); }}' for name in names),
            *(f'extern "C" int Msprof{name}() {{ return 0; }}' for name in profiler),
        ]
    )


def write(folder: Path, name: str, text: str) -> Path:
    """Write a generated source."""
    path = folder / name
    path.write_text(text)
    return path


if __name__ == "__main__":
    raise SystemExit(main())
