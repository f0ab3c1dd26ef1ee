"""The cell: namespaces of Linux in which a script runs without the machine's devices, network and processes."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pretrain.errors import MigrateError

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 30
"""Time that a script may take; one that only starts programs takes less than one second."""

_NEEDED = ("bash", "unshare", "setpriv", "pivot_root", "mount", "umount", "tar", "timeout")
_TIMED_OUT = 124
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class CellScript:
    """A script for a cell, with its values."""

    script: Path  # its absolute path
    text: str  # what bash reads there
    options: tuple[str, ...] = ()  # of bash
    arguments: tuple[str, ...] = ()  # of the script
    environment: Mapping[str, str] = field(default_factory=dict)  # variables
    roots: tuple[str, ...] = ()  # names of those that are not known; their values are markers, or numbers
    numbers: Mapping[str, str] = field(default_factory=dict)  # those in the place of values that are not known
    defined: Mapping[str, str] = field(default_factory=dict)  # values that win over the script's own, by name
    answers: Mapping[str, str] = field(default_factory=dict)  # what a program prints that is not run, by its name


@dataclass(frozen=True, slots=True)
class Told:
    """Outcome of a run in a cell."""

    status: int  # the script's exit code
    said: str  # the end of what bash and programs wrote to standard error
    records: Mapping[str, CellRecord]  # by name, in the order of time


def run_in_cell(given: CellScript) -> Told:
    """Run a script in a cell; nothing that it writes stays."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in _NEEDED if shutil.which(name, path=path) is None]
    if missing:
        raise MigrateError(_no_cell(given.script, f"there is no {missing[0]}"))
    bash = str(shutil.which("bash"))
    with tempfile.TemporaryDirectory(prefix="pretrain-cell-") as folder:
        state = Path(folder)
        _prepare(state, bash, given)
        command = ["unshare", "-rUmnpi", "--fork", "--kill-child", "sh", str(_HERE / "setup.sh"), folder, bash]
        command += [str(given.script), str(_folder(given.script)), str(given.script.parent), str(Path.home())]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS + 15, check=False)
        except subprocess.TimeoutExpired as error:
            raise MigrateError(_no_end(given.script)) from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise MigrateError(_no_cell(given.script, why[0] if why else f"exit code {done.returncode}"))
    return _told(given.script, done.stdout)


def _folder(script: Path) -> Path:
    """Return where the script starts: here if it is below, as one calls it; else in its own folder."""
    here = Path.cwd()
    return here if script.is_relative_to(here) else script.parent


def _prepare(state: Path, bash: str, given: CellScript) -> None:
    (state / "root").mkdir()
    inside = state / "given"
    write_stubs(inside, bash)
    (inside / "answers").mkdir()
    for name, answer in given.answers.items():
        (inside / "answers" / name).write_text(f"{answer}\n", encoding="utf-8")
    for name in ("run.sh", "before.sh"):
        shutil.copy(_HERE / name, inside / name)
    (inside / "script").write_text(given.text, encoding="utf-8")
    (inside / "script").chmod(0o755)
    values = [_array("-A __defined", given.defined), _array("-A __numbers", given.numbers)]
    values += [f"__folder={shlex.quote(str(given.script.parent))}"]
    (inside / "values").write_text("\n".join(values), encoding="utf-8")
    (inside / "settings").write_text(_settings(given), encoding="utf-8")


def _array(name: str, values: Mapping[str, str]) -> str:
    return f"declare {name}=({' '.join(f'[{key}]={shlex.quote(value)}' for key, value in values.items())})"


def _settings(given: CellScript) -> str:
    folder = str(_folder(given.script))
    environment = {
        "PATH": f"/.cell/stubs:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "HOME": str(Path.home()),
        "USER": os.environ.get("USER", "user"),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "PWD": folder,
        **given.environment,
        "BASH_ENV": "/.cell/before.sh",
        "CELL_ROOTS": " ".join(given.roots),
    }
    name = os.path.relpath(given.script, folder)
    words = [*given.options, name if "/" in name else f"./{name}", *given.arguments]
    return "\n".join(
        (
            f"CELL_FOLDER={shlex.quote(folder)}",
            f"CELL_SECONDS={SECONDS}",
            f"CELL_ENVIRONMENT=({shlex.join(f'{key}={value}' for key, value in environment.items())})",
            f"CELL_ARGUMENTS=({shlex.join(words)})",
        )
    )


def _told(script: Path, archive: bytes) -> Told:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {member.name: opened.extractfile(member) for member in opened if member.isfile()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    status = int(content["status"])
    if status == _TIMED_OUT:
        raise MigrateError(_no_end(script))
    records = {
        name.partition("/")[2]: parse_record(data)
        for name, data in content.items()
        if name.startswith("records/") and not name.endswith(".part")
    }
    return Told(status, content["said"].decode(errors="replace"), records)


def _no_cell(script: Path, why: str) -> str:
    return (
        f"{script.name}: cannot make the cell in which scripts run: {why}.\n"
        "It needs bash and Linux's user namespaces. Without them, give the training's log, or, if the script does\n"
        f"nothing else, run it for real: pretrain migrate --capture -- bash {shlex.quote(script.name)}"
    )


def _no_end(script: Path) -> str:
    return (
        f"{script.name}: it did not end within {SECONDS} seconds in the cell, where it only starts stubs.\n"
        "Give a copy without the lines that wait or compute, or the training's log."
    )


_NAMES = (
    "python python2 python3 torchrun deepspeed deepspeed.py accelerate srun sbatch salloc mpirun mpiexec mpiexec.hydra"
    " orterun ssh pdsh nohup nice setsid stdbuf numactl taskset timeout unbuffer nsys ncu sudo singularity apptainer"
    " docker podman enroot conda micromamba mamba poetry uv pipenv"
)
"""Programs that start a training, or stand before one."""

_OF_THE_MACHINE = (
    "hostname nproc nvidia-smi npu-smi rocm-smi scontrol sinfo squeue scancel scp rsync wget curl git pip pip3 sleep"
    " clear sh dash ksh zsh ip ifconfig ping ray kubectl apt apt-get"
)
"""Programs that are no part of a training; those that this machine does not have are not there in the cell either."""


def write_stubs(state: Path, bash: str, *, captures: bool = False) -> Path:
    """Write the stubs of a cell, or of a capture, and return the folder that comes first on PATH."""
    folder = state / "stubs"
    folder.mkdir(parents=True)
    names = _NAMES.split() + ([] if captures else [name for name in _OF_THE_MACHINE.split() if shutil.which(name)])
    stub = folder / ".stub"
    stub.write_text(f"#!{bash} -p\n{(_HERE / 'stub.sh').read_text(encoding='utf-8')}", encoding="utf-8")
    stub.chmod(0o755)
    for name in names:
        (folder / name).symlink_to(".stub")
    (state / "unknown").touch()
    return folder


Kind = Literal["run", "sourced", "missing", "unknown", "used", "condition", "files"]


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One thing that happened."""

    kind: Kind  # a program that was started, or what the script did with a value that is not known
    line: int  # of the script's command
    source: str  # file of that line
    folder: str  # working directory
    words: tuple[str, ...]  # the program and its arguments; of other kinds, a name and the command
    around: str = ""  # name of the record of the launcher that handed the command to a shell; empty for none
    around_at: int = 0  # where that shell stands among the launcher's words
    unknown: str = ""  # program whose output is part of the arguments; empty for none
    files: Mapping[str, str] = field(default_factory=dict)  # JSON files that the arguments name, at that moment


def parse_record(data: bytes) -> CellRecord:
    """Return a record that stub.sh or before.sh wrote."""
    kind, line, source, folder, around, at, unknown, count, *rest = data.decode(errors="replace").split("\0")[:-1]
    words, files = rest[: int(count)], rest[int(count) :]
    return CellRecord(
        cast("Kind", kind),
        int(line),
        source,
        folder,
        tuple(words),
        around,
        int(at),
        unknown,
        dict(zip(files[::2], files[1::2], strict=True)),
    )


def whole_commands(records: Mapping[str, CellRecord]) -> list[tuple[CellRecord, tuple[str, ...]]]:
    """Return every program that was started, with the words of the launchers around it first."""
    started = (record for _, record in sorted(records.items()) if record.kind == "run")
    return [(record, (*_around(record, records), *record.words)) for record in started]


def _around(record: CellRecord, records: Mapping[str, CellRecord]) -> tuple[str, ...]:
    launcher = records.get(record.around)
    if launcher is None:
        return ()
    return (*_around(launcher, records), *launcher.words[: record.around_at])
