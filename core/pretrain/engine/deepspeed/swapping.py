"""Requirements of ZeRO-3 with optimizer state or weights in files (`device: nvme`): folders, memory, async_io."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.bridge.deepspeed.zero_state import SubGroups, is_in_file
from pretrain.collectives import first_problem
from pretrain.engine.deepspeed.extension import Extension, load_extension
from pretrain.errors import BackendError, PretrainError, RecipeError
from pretrain.model.requests import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pretrain.model.gpt import GPT
    from pretrain.recipe import Recipe


_OPTIMIZER = "engine.zero.offload_optimizer"
_PARAM = "engine.zero.offload_param"


def prepare(recipe: Recipe, notify: Callable[[str], None]) -> None:
    """Claim folders and load async_io if the recipe has `device: nvme`, before the model is made. Collective."""
    optimizer, param = recipe.engine.zero.offload_optimizer, recipe.engine.zero.offload_param
    paths = {}
    if optimizer.device == "nvme":
        paths[_OPTIMIZER] = str(optimizer.nvme_path)
    if param.device == "nvme":
        paths[_PARAM] = str(param.nvme_path)
    if not paths:
        return
    claim({f"{key}.nvme_path": path for key, path in paths.items()}, dist.get_rank())
    try:
        require_async_io(f"{next(iter(paths))}.device", notify)
        if param.device == "nvme":
            _require_memory(_PARAM, param.buffer_count * param.buffer_size * compute_dtype(recipe).itemsize)
    except PretrainError:
        release()
        raise


def require_room(recipe: Recipe, groups: Sequence[dict[str, Any]]) -> None:
    """Check that the largest sub-group fits where DeepSpeed will put it, and that its memory may be locked."""
    zero = recipe.engine.zero
    if zero.offload_optimizer.device != "nvme":
        return
    largest = max(max(_sub_groups(group["params"], zero.sub_group_size)) for group in groups)
    if zero.offload_optimizer.fast_init and largest > zero.offload_param.buffer_size:
        msg = (
            f"{_PARAM}.buffer_size: {zero.offload_param.buffer_size} is too small for {_OPTIMIZER}.fast_init, which "
            f"reads a sub-group of {largest} elements into a buffer.\n"
            f"Give at least that, or a smaller engine.zero.sub_group_size, or {_OPTIMIZER}.fast_init: false."
        )
        raise RecipeError(msg)
    _require_memory(_OPTIMIZER, zero.offload_optimizer.buffer_count * largest * torch.float32.itemsize)


def report_in_memory(recipe: Recipe, model: GPT, optimizer: Any, notify: Callable[[str], None]) -> None:
    """Notify the user if nothing is in files although the recipe asks for it; DeepSpeed does not."""
    zero = recipe.engine.zero
    if zero.offload_optimizer.device == "nvme":
        groups = SubGroups(optimizer)
        if not any(groups.is_in_files(number) for number in range(len(groups))):
            notify(f"{_OPTIMIZER}: nothing is in files; every sub-group has less than 1 MiB for this rank")
    if zero.offload_param.device == "nvme" and not any(map(is_in_file, model.parameters())):
        notify(
            f"{_PARAM}: no weight is in a file; they fit into max_in_cpu: {zero.offload_param.max_in_cpu} elements of "
            "host memory, or have less than 1 MiB each"
        )


def _sub_groups(parameters: Sequence[Any], size: int) -> list[int]:
    """Return this rank's elements of each sub-group, as _create_fp16_sub_groups of stage 3 makes them."""
    sizes = [0]
    for parameter in parameters:
        if sizes[-1] >= size:
            sizes.append(0)
        sizes[-1] += parameter.ds_tensor.ds_numel
    return sizes


def _require_memory(key: str, size: int) -> None:
    """Check that memory may be locked: DeepSpeed aborts the process otherwise (deepspeed_pin_tensor_t::alloc)."""
    if can_lock(size):
        return
    msg = (
        f"{key}: nvme needs {size / 2**20:.0f} MiB of locked memory for each rank; the system refuses it (ulimit -l).\n"
        f"Raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1), or lower {key}.buffer_count"
        f"{' or buffer_size' if key == _PARAM else ' or engine.zero.sub_group_size'}."
    )
    raise RecipeError(msg)


PIN_MEMORY = Extension(name="pin_memory", builder="PinMemoryBuilder", title="pin_memory", duration="less than a minute")
ASYNC_IO = Extension(
    name="async_io",
    builder="AsyncIOBuilder",
    title="async_io",
    duration="some minutes",
    library="libaio (package libaio-dev of Debian and Ubuntu, libaio-devel of Red Hat, libaio of Arch)",
    first=PIN_MEMORY,  # else the builder compiles it, and waits forever for the file lock of a run that was killed
)


def require_async_io(key: str, notify: Callable[[str], None]) -> None:
    """Load DeepSpeed's async_io, or compile it; all ranks call it together, after the bridge has imported DeepSpeed."""
    problem = first_problem(load_extension(ASYNC_IO, notify))
    if problem is not None:
        msg = f"{key}: nvme needs DeepSpeed's async_io, but {problem}.\nFix that, or set {key} to cpu."
        raise BackendError(msg)


_ON_FAULT = 1  # MLOCK_ONFAULT of <sys/mman.h>


def can_lock(size: int) -> bool:
    """Say whether this process may lock `size` more bytes; no page is touched. True where there is no mlock2."""
    lock = getattr(ctypes.CDLL(None), "mlock2", None)
    if lock is None or not size:
        return True
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return False
    # The system decides: the limit (`ulimit -l`) does not apply to every user.
    start = ctypes.c_char.from_buffer(memory)
    try:
        return bool(lock(ctypes.byref(start), ctypes.c_size_t(size), _ON_FAULT) == 0)
    finally:
        del start
        memory.close()  # which unlocks it


# Folders of a rank's files: `nvme_path`/zero_stage_3/*/rank0 for rank 0 of the world. DeepSpeed names them
# (AsyncPartitionedParameterSwapper, OptimizerSwapper). It checks neither that it can write there, nor that no other
# training does so, whose values it would read as its own; and it does not remove its files.

_claimed: list[tuple[Path, int, int]] = []
"""Folders of this process: path, rank, and the open file whose lock keeps other processes out."""


def claim(paths: Mapping[str, str], rank: int) -> None:
    """Claim this rank's folders, by their keys, until `release`; the files of a killed run are removed. Collective."""
    release()
    problems = [_claim(key, Path(path), rank) for key, path in paths.items()]
    problem = first_problem(next(filter(None, problems), None))
    if problem is not None:
        release()
        raise RecipeError(problem)


def release() -> None:
    """Remove this rank's files, and the folders where no other rank has any."""
    while _claimed:
        folder, rank, lock = _claimed.pop()
        parents = _clear(folder, rank)
        (folder / f"rank{rank}.lock").unlink(missing_ok=True)
        os.close(lock)
        for parent in (*parents, folder):
            with contextlib.suppress(OSError):  # others' files are in it
                parent.rmdir()


def _claim(key: str, path: Path, rank: int) -> str | None:
    """Claim one folder; return the reason if it cannot be used."""
    folder = path / "zero_stage_3"
    if any(folder == claimed for claimed, *_ in _claimed):
        return None
    if not path.is_dir():
        return f"{key}: {path} is not a folder on this machine.\nMake it, or give another one."
    try:
        folder.mkdir(exist_ok=True)
        lock = _lock(folder / f"rank{rank}.lock")
    except OSError as error:
        # The extension opens its files with O_DIRECT (open_file of deepspeed_aio_common.cpp).
        lacks_direct = error.errno == errno.EINVAL
        reason = "is on a file system without direct I/O" if lacks_direct else f"cannot be written: {error.strerror}"
        return f"{key}: {path} {reason}.\nGive a folder on a local disk, in which this user may write."
    if lock is None:
        return f"{key}: {path} is in use by another run.\nWait until it ends, or give this run another folder."
    _claimed.append((folder, rank, lock))
    _clear(folder, rank)
    return None


def _lock(path: Path) -> int | None:
    """Return the open file, locked; None if another process has it. The system releases the locks of dead processes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECT", 0), 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = path.exists() and os.path.samestat(os.fstat(file), path.stat())
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if is_there:
        return file
    os.close(file)  # its owner has removed it since it was opened
    return _lock(path)


def _clear(folder: Path, rank: int) -> list[Path]:
    """Remove a rank's files; return the folders that had some."""
    found = list(folder.glob(f"*/rank{rank}"))
    for files in found:
        shutil.rmtree(files, ignore_errors=True)
    return [files.parent for files in found]
