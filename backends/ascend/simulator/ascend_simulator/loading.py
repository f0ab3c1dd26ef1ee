"""Loads the simulated libraries before torch_npu needs them, and its kernels after it has registered its own."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings

from ascend_simulator.places import LIBRARIES

RUNTIME = ("ascendcl", "ge_runner", "hccl", "graph", "acl_tdt_channel", "acl_op_compiler", "opapi")
"""Libraries, in the order of their dependencies. Loaded by path and globally, so that others find them by name."""


AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def before_torch_npu() -> None:
    """Load what torch_npu's own libraries are linked with."""
    if not (LIBRARIES / "libascend_simulator.so").is_file():
        message = "the simulated NPU is not built: call backends/ascend/environment"
        raise ImportError(message)
    _import_torch()  # whose libraries the last one needs
    for name in RUNTIME:
        ctypes.CDLL(str(LIBRARIES / f"lib{name}.so"), ctypes.RTLD_GLOBAL)


def _import_torch() -> None:
    if "torch" in sys.modules:
        return
    given = os.environ.get(AUTOLOAD)
    os.environ[AUTOLOAD] = "0"  # it would import torch_npu, which is being imported
    try:
        import torch  # noqa: F401
    finally:
        if given is None:
            del os.environ[AUTOLOAD]
        else:
            os.environ[AUTOLOAD] = given


def after_torch_npu() -> None:
    """Put the simulated kernels in the place of torch_npu's."""
    import torch

    torch.ops.load_library(LIBRARIES / "libascend_simulator.so")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernels that are replaced
        torch.ops.ascend_simulator.install()
        from ascend_simulator import kernels  # noqa: F401
