"""Compile the simulator: `python -m ascend_simulator.build`. Libraries that are up to date are left alone.

Needs a C++ compiler ($CXX, else g++) and the headers that torch and torch_npu bring; neither is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from ascend_simulator.places import LIBRARIES, SOURCES, TOOLKIT

COMPILER = os.environ.get("CXX", "g++")
OPTIONS = ["-O1", "-fPIC", "-shared", "-w"]
TOOLKIT_FOLDERS = ("opp", "runtime", "compiler")
PROFILER = ("GetHashId", "RegisterCallback", "ReportAdditionalInfo", "ReportApi", "ReportCompactInfo", "SysCycleTime")


def main() -> int:
    """Build what is missing; return the exit status."""
    for folder in (LIBRARIES, *(TOOLKIT / name for name in TOOLKIT_FOLDERS)):
        folder.mkdir(parents=True, exist_ok=True)
    if not shutil.which(COMPILER):
        sys.stderr.write(
            f"The simulated NPU is written in C++, and there is no compiler {COMPILER}.\n"
            "Install g++ 11 or later, or set CXX to the name of another.\n"
        )
        return 2
    try:
        build()
    except subprocess.CalledProcessError:
        sys.stderr.write("The simulated NPU could not be built; the compiler's errors are above.\n")
        return 1
    return 0


def build() -> None:
    """Compile all libraries. Raises subprocess.CalledProcessError."""
    npu, torch = (Path(importlib.util.find_spec(name).submodule_search_locations[0]) for name in ("torch_npu", "torch"))
    acl = [f"-I{npu}/include/third_party/acl/inc", f"-I{npu}/include"]
    aten = ["-std=c++20", f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", *acl, f"-L{torch}/lib"]
    runtime = [f"-L{LIBRARIES}", "-lascendcl"]
    # Resolved when it is loaded, as what it needs in turn is: torch_npu is in the process by then.
    own = [f"-L{npu}/lib", "-Wl,--no-as-needed", "-ltorch_npu", "-Wl,--allow-shlib-undefined"]

    library("ascendcl", sources("cann"), "-std=c++17", *acl, "-lpthread")
    library("hccl", sources("hccl"), "-std=c++17", *acl, *runtime)
    library("ge_runner", [generated("stubs", stubs())])
    for empty in ("graph", "acl_tdt_channel"):
        library(empty, [generated("empty", "")])
    # torch_npu looks some functions of the runtime up in this library itself, so it must depend on the runtime.
    library("acl_op_compiler", [generated("empty", "")], "-Wl,--no-as-needed", *runtime)
    library(
        "opapi", [*sources("opapi"), SOURCES / "operators" / "overflow.cpp"], *aten, "-ltorch_cpu", "-lc10", *runtime
    )
    # In one piece: torch's headers take longer than all that follows them.
    whole = "".join(f'#include "{path}"  // {checksum_of([path])}\n' for path in sources("operators"))
    options = [*aten, "-ltorch", "-ltorch_cpu", "-lc10", *runtime, *own]
    library("ascend_simulator", [generated("operators", whole)], *options)


def library(name: str, files: list[Path], *options: str) -> None:
    """Compile one shared library, known to the loader by its file's name, unless it is up to date."""
    file = LIBRARIES / f"lib{name}.so"
    unfinished, stamp = file.with_suffix(f".{os.getpid()}"), file.with_suffix(".checksum")
    command = [COMPILER, *OPTIONS, *map(str, files), f"-Wl,-soname,{file.name}", f"-I{SOURCES}", *options]
    versions = f"{version('torch')} {version('torch_npu')}"
    wanted = checksum_of([*files, *sorted(SOURCES.glob("*/*.h"))], " ".join(command) + versions)
    if file.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"building the simulated NPU: {file.name} ...", flush=True)
    subprocess.run([*command, "-o", unfinished], check=True)
    unfinished.rename(file)  # a process that has the old one open keeps it
    stamp.write_text(wanted)


def checksum_of(files: list[Path], text: str = "") -> str:
    """Return what changes with the text or a file."""
    digest = hashlib.sha256(text.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources(folder: str) -> list[Path]:
    """Return the C++ files of one library."""
    return sorted((SOURCES / folder).glob("*.cpp"))


def generated(name: str, text: str) -> Path:
    """Write a generated source."""
    path = LIBRARIES / f"{name}.cpp"
    path.write_text(text)
    return path


def stubs() -> str:
    """Return functions that raise because they are not simulated, and no-ops for the profiler."""
    names = [line for line in (SOURCES / "stubs.txt").read_text().splitlines() if not line.startswith("#")]
    return "\n".join(
        [
            "#include <cstdio>",
            "static int no(const char* name) {",
            '  std::fprintf(stderr, "simulated CANN: %s is not simulated\\n", name);',
            "  return 500000;",
            "}",
            *(f'extern "C" int {name}() {{ return no("{name}"); }}' for name in names),
            *(f'extern "C" int Msprof{name}() {{ return 0; }}' for name in PROFILER),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
