"""Folders of stubs: programs that write down their arguments instead of running."""

from __future__ import annotations

import shutil
from pathlib import Path

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
    """Write the stubs of a cell, or those of a capture.

    Args:
        state: folder for them, and for what they write.
        bash: path of the shell.
        captures: whether the command is run for real, so that only programs of a training are stood for.

    Returns:
        the folder that comes first on PATH.
    """
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
