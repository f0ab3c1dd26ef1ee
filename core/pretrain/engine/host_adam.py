"""Adam for an optimizer state that ZeRO keeps in the memory of the host."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.engine.counted_adam import counted
from pretrain.errors import KernelError
from pretrain.reference.adam import FusedAdam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.recipe import Recipe

_KEY = "engine.zero.offload_optimizer.cpu_adam"


def host_adam(recipe: Recipe, tell: Callable[[str], None]) -> type[Any]:
    """Return the class that `engine.zero.offload_optimizer.cpu_adam` names; the bridge has imported DeepSpeed.

    Args:
        recipe: what is trained.
        tell: is given what the user should know: that something is compiled, or that torch stands in.

    Raises:
        KernelError: DeepSpeed's Adam is asked for and cannot be compiled here.
    """
    wanted = recipe.engine.zero.offload_optimizer.cpu_adam
    if wanted == "torch":
        return counted(FusedAdam)
    with _scripts_on_path():
        problem = _cannot_compile() or _compile(tell)
    if problem is None:
        return _deepspeed_adam()
    if wanted == "auto":
        tell(f"torch's fused AdamW stands in for DeepSpeed's CPU Adam: {problem}")
        return counted(FusedAdam)
    msg = (
        f"{_KEY}: deepspeed is compiled at its first use, but {problem}.\n"
        f"Mend that, or set {_KEY} to torch (its fused AdamW), or to auto (torch's where DeepSpeed's cannot be had)."
    )
    raise KernelError(msg)


def _deepspeed_adam() -> type[Any]:
    adam: Any = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam

    class HostAdam(adam):  # type: ignore[misc]
        """DeepSpeed's, with the project's names and a count of steps that can be set."""

        def __init__(self, params: Any, *, adam_w_mode: bool, **options: Any) -> None:
            super().__init__(params, adamw_mode=adam_w_mode, **options)
            self._taken = 0

        @property
        def taken(self) -> int:
            return self._taken

        @taken.setter
        def taken(self, steps: int) -> None:
            self._taken = steps
            for state in self.state.values():  # it counts for each tensor
                state["step"] = steps

    return HostAdam


def _cannot_compile() -> str | None:
    """Return what is missing; None where nothing is, or where DeepSpeed was installed with it compiled."""
    if _installed("cpu_adam"):
        return None
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else ["c++", "g++"]
    if not any(shutil.which(compiler) for compiler in compilers):
        return f"there is no C++ compiler ({', '.join(compilers)})"
    return None if shutil.which("ninja") else "ninja is missing"


def _compile(tell: Callable[[str], None]) -> str | None:
    """Load the extension, compiling it where that was never done; return what went wrong."""
    builder = importlib.import_module("deepspeed.ops.op_builder").CPUAdamBuilder()
    if not _installed("cpu_adam") and not _was_compiled("cpu_adam"):
        tell("compiling DeepSpeed's CPU Adam; this is done once and takes about a minute ...")
    start = time.monotonic()
    try:
        builder.load(verbose=False)
    except Exception as error:  # noqa: BLE001  torch raises whatever the compiler's failure led to
        return f"compiling failed: {str(error).strip().splitlines()[0]}"
    seconds = time.monotonic() - start
    if seconds > 5:
        tell(f"compiled in {seconds:.0f} s")
    return None


def _installed(name: str) -> bool:
    return bool(importlib.import_module("deepspeed.git_version_info").installed_ops.get(name, False))


def _was_compiled(name: str) -> bool:
    root = importlib.import_module("torch.utils.cpp_extension").get_default_build_root()
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", root))
    return any(folder.glob(f"**/{name}/{name}.so"))


@contextmanager
def _scripts_on_path() -> Iterator[None]:
    """Let torch find the ninja that DeepSpeed installs beside this Python, whose environment may not be activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{before}{os.pathsep}{Path(sys.executable).parent}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
