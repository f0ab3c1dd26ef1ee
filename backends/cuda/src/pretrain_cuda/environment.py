"""Environment variables of a rank: growth of torch's allocator, and the folder of Triton's compiled kernels."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch's own setting, from 2.9 on for every device, and its older name: one of the two decides."""

CACHE = ("TRITON_CACHE_DIR", "TRITON_HOME")
"""Triton's own settings: the folder itself, and the one in which it makes .triton/cache; the first one decides."""


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set, without those that the given environment decides already."""
    found = {}
    if not any(name in given for name in ALLOCATOR):
        found[ALLOCATOR[0]] = "expandable_segments:True"
    if not any(name in given for name in CACHE) and (folder := own_folder(Path(tempfile.gettempdir()))):
        found["TRITON_CACHE_DIR"] = str(folder)
    return found


def own_folder(parent: Path) -> Path | None:
    """Return a folder that this user alone writes to, made if it is missing; None if others own it or write to it.

    Triton runs what it finds there. Its default is in the home directory, which the ranks of many nodes share.
    """
    folder = parent / f"pretrain-triton-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


EFFECTIVE = {
    "CUDA_LAUNCH_BLOCKING": "1 waits for every kernel; far slower, and hides races",
    "CUDA_VISIBLE_DEVICES": "devices that ranks may take, in its order",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1 starts communication before the kernels queued behind it, for tensor parallelism",
    "CUBLAS_WORKSPACE_CONFIG": "workspace of cuBLAS: :4096:8 and :16:8 make it deterministic",
    "NVIDIA_TF32_OVERRIDE": "0 or 1 overrides the precision of all fp32 matmuls",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1 rounds the inputs of fp32 matmuls to TF32",
    "PYTORCH_CUDA_ALLOC_CONF": "torch's allocator of device memory; our own setting (expandable segments) is left out",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1 asks the driver for memory at every allocation; far slower",
    "TORCH_NCCL_BLOCKING_WAIT": "1 blocks the host in every collective; slower",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0 leaves ranks hanging after one has failed",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "how torch keeps memory that is being sent",
    "NCCL_ALGO": "NCCL's algorithm, instead of its own choice by size",
    "NCCL_PROTO": "NCCL's protocol; LL128 where links do not support it gives wrong results",
    "NCCL_P2P_DISABLE": "1 copies between devices of a node through host memory; far slower with NVLink",
    "NCCL_SHM_DISABLE": "1 sends within a node over the network where devices cannot copy directly",
    "NCCL_IB_DISABLE": "1 uses TCP instead of InfiniBand or RoCE; far slower",
    "NCCL_IB_HCA": "network cards that NCCL takes",
    "NCCL_IB_GID_INDEX": "address of a RoCE card; a wrong one hangs or fails at the start",
    "NCCL_SOCKET_IFNAME": "network interface; a wrong one hangs or fails at the start",
    "NCCL_NET_GDR_LEVEL": "distance up to which network cards read device memory",
    "NCCL_NVLS_ENABLE": "0 leaves out the reductions in NVLink's switches",
    "NCCL_MIN_NCHANNELS": "more channels take more multiprocessors from the kernels",
    "NCCL_MAX_NCHANNELS": "fewer channels are slower",
    "NCCL_BUFFSIZE": "size of NCCL's buffers: memory for each channel and peer",
    "NCCL_CUMEM_ENABLE": "how NCCL allocates its buffers",
    "NCCL_DEBUG": "NCCL's log; TRACE and INFO with all subsystems slow down",
    "TRITON_INTERPRET": "1 runs Triton's kernels in Python; thousands of times slower",
}
"""Variables that change a training or its speed -> their effect: NVIDIA's environment variables of CUDA, cuBLAS and
NCCL, torch's of ProcessGroupNCCL and of its allocator."""
