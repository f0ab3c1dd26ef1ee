"""Download the wheels that a GPU machine without a network lacks: `make wheels`.

    python wheels.py FOLDER [NAME==VERSION ...]

The machine has Python 3.12 on Linux x86-64, torch 2.11 for CUDA, Triton 3.6, numpy 2.5, and what is named besides;
NAME== without a version takes one of these off. pip resolves everything that the core with its engines and tests, and
this backend, need there. Of what the machine has it is shown empty wheels, so that it brings neither that nor the
gigabytes of CUDA libraries behind torch. A folder of more than 60 MiB is an error: a machine that is lent takes 64 MiB
along, the checkout's other ignored files among them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
PYTHON = "3.12"
THERE = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.5.2"}
LARGEST = 60 * 2**20
"""Bytes of the folder."""
MARK = "on.the.machine"
"""Local version of the empty wheels: no index has one like it, so pip can only take these."""
GLIBC = range(28, 4, -1)
"""Platform tags of wheels: pip compares them for equality."""
EXTRAS = ("deepspeed", "conformance")
SOURCE_ONLY = ("deepspeed",)
"""Not published as a wheel. The one that is built here is pure Python: kernels are compiled where they are used."""


def main(folder: Path, *there: str) -> None:
    """Fill the folder; wheels that are in it already are taken from there."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = requirements()
    sources = [requirement for requirement in needed if _name(requirement) in SOURCE_ONLY]
    _pip("wheel", "--no-deps", "--find-links", folder, "--wheel-dir", folder, *sources)
    with tempfile.TemporaryDirectory() as empty:
        versions = versions_there(there)
        pins = [write_empty_wheel(Path(empty), name, f"{version}+{MARK}") for name, version in versions.items()]
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64", "linux_x86_64"]
        options = [f"--platform={platform}" for platform in platforms]
        options += ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"]
        _pip("download", *options, "--find-links", folder, "--find-links", empty, "--dest", folder, *needed, *pins)
    for wheel in folder.glob(f"*+{MARK}-*.whl"):
        wheel.unlink()
    sys.stdout.write(f"{weigh(folder)}\n")


def versions_there(named: Sequence[str]) -> dict[str, str]:
    """Return name -> version of what the machine has, for NAME==VERSION or NAME== of what differs."""
    versions = THERE | dict(one.split("==") for one in named)
    return {name: version for name, version in versions.items() if version}


def weigh(folder: Path) -> str:
    """Return how many wheels there are and their size; exit with what is largest where that is too much to carry."""
    sizes = {wheel.name: wheel.stat().st_size for wheel in folder.glob("*.whl")}
    total = sum(sizes.values())
    said = f"{folder}: {len(sizes)} wheels, {total / 2**20:.1f} MiB"
    if total <= LARGEST:
        return said
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
    listed = ", ".join(f"{name.partition('-')[0]} {sizes[name] / 2**20:.1f}" for name in largest)
    msg = (
        f"{said}; at most {LARGEST / 2**20:g} can be carried. Largest: {listed}.\n"
        'Empty the folder if it has two versions of one; name what the machine has: make wheels THERE="NAME==VERSION".'
    )
    raise SystemExit(msg)


def requirements() -> list[str]:
    """Return what the two distributions need to be built in place, installed and tested."""
    core, cuda = (tomllib.loads((ROOT / path / "pyproject.toml").read_text()) for path in (".", "backends/cuda"))
    extras = core["project"]["optional-dependencies"]
    needed = [
        *core["build-system"]["requires"],
        "editables",  # which hatchling asks for when it installs in place
        *core["project"]["dependencies"],
        *(requirement for extra in EXTRAS for requirement in extras[extra]),
        *cuda["project"]["dependencies"],
    ]
    return [requirement for requirement in needed if _name(requirement) != core["project"]["name"]]


def write_empty_wheel(folder: Path, name: str, version: str) -> str:
    """Write a wheel that holds nothing and needs nothing; return the requirement that it alone fulfils."""
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return f"{name}=={version}"


def _name(requirement: str) -> str:
    return requirement.partition("[")[0].split("=")[0].split(">")[0].split("<")[0].strip()


def _pip(command: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
