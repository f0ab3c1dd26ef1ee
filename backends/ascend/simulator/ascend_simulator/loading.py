"""Loads the simulated libraries before torch_npu needs them, and its kernels after it has registered its own."""

from __future__ import annotations

import ctypes
import warnings

from ascend_simulator.places import LIBRARIES

RUNTIME = ("ascendcl", "ge_runner", "hccl", "graph", "acl_tdt_channel", "acl_op_compiler")
"""In the order in which they need one another. Loaded by path and for everybody, they answer to their names."""


def before_torch_npu() -> None:
    """Load what torch_npu's own libraries are linked with."""
    if not (LIBRARIES / "libascend_simulator.so").is_file():
        message = "the simulated NPU is not built: call backends/ascend/environment"
        raise ImportError(message)
    for name in RUNTIME:
        ctypes.CDLL(str(LIBRARIES / f"lib{name}.so"), ctypes.RTLD_GLOBAL)


def after_torch_npu() -> None:
    """Put the simulated kernels in the place of torch_npu's."""
    import torch

    ctypes.CDLL(str(LIBRARIES / "libopapi.so"), ctypes.RTLD_GLOBAL)
    torch.ops.load_library(LIBRARIES / "libascend_simulator.so")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernels that are replaced
        torch.ops.ascend_simulator.install()
        from ascend_simulator import kernels  # noqa: F401
