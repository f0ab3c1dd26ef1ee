"""The operators that torch_npu adds to torch. Every call that this backend makes of them goes through here.

The tests hold each call against the schemas of the torch_npu releases in backends/ascend/tests/schemas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call `torch.ops.npu.<name>`; torch_npu, which registers it, is loaded since the backend was asked for its device.

    Options are only those that all supported releases have, and only where they differ from the default. On torch's
    fake tensors, on which a plan runs the kernels, it calls the operator's stand-in, and torch_npu is not needed.
    """
    first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
    if isinstance(first, FakeTensor):
        stand_ins = import_module("pretrain_ascend.kernels.stand_ins.operators_by_name")
        return stand_ins.OPERATORS[name](*arguments, **options)
    return getattr(torch.ops.npu, name)(*arguments, **options)
