"""The operators that torch_npu adds to torch. Every call that this backend makes of them goes through here.

The tests hold each call against the schemas of the torch_npu releases in backends/ascend/tests/schemas.
"""

from __future__ import annotations

from typing import Any

import torch


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call `torch.ops.npu.<name>`; torch_npu, which registers it, is loaded since the backend was asked for its device.

    Options are only those that all supported releases have, and only where they differ from the default.
    """
    return getattr(torch.ops.npu, name)(*arguments, **options)
