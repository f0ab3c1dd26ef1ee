"""DeepSpeed's async_io, which ZeRO-3 needs to keep anything in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.collectives import first_problem
from pretrain.engine.deepspeed.extension import Extension, load_extension
from pretrain.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Load DeepSpeed's async_io, or compile it; all ranks call it together, after the bridge has imported DeepSpeed.

    Args:
        key: the recipe's key that asks for files.
        notify: shows the user a line: that something is compiled.

    Raises:
        BackendError: on all ranks, when one of them lacks it.
    """
    problem = first_problem(load_extension(ASYNC_IO, notify))
    if problem is not None:
        msg = f"{key}: nvme needs DeepSpeed's async_io, but {problem}.\nFix that, or let {key} be cpu."
        raise BackendError(msg)
