"""Requirements of a run on its device: availability, dtype, compilation. There is no fallback to another device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import BackendError, DeviceError
from pretrain.plugins.backend import Available, Unavailable
from pretrain.plugins.host.importing import cause
from pretrain.plugins.host.members import ask

if TYPE_CHECKING:
    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe

_ANSWERS = (Available, Unavailable)


def availability(plugins: Plugins) -> Available | Unavailable:
    """Return `Backend.availability`. A backend that raises counts as unavailable, with the exception as the reason."""
    try:
        answer = plugins.backend.availability()
    except Exception as exc:  # noqa: BLE001  the contract says "never raises"; a listing must survive those that do
        return Unavailable(f"availability() raised {cause(exc)}", f"report it to the authors of {plugins.provider}")
    if isinstance(answer, Available | Unavailable):
        return answer
    wrong = f"availability() returned {type(answer).__name__}, not Available or Unavailable"
    return Unavailable(wrong, f"report it to the authors of {plugins.provider}")


def require_device(plugins: Plugins) -> Available:
    """Return the backend's answer when the device can be used.

    Raises:
        DeviceError: it cannot; with the backend's reason and remedy.
    """
    answer = availability(plugins)
    if isinstance(answer, Available):
        return answer
    remedy = answer.remedy or "`pretrain backends` shows what can be used on this machine."
    msg = f"{plugins.label} has no usable device: {answer.reason}\n{remedy}"
    raise DeviceError(msg)


def require_dtype(plugins: Plugins, dtype: torch.dtype) -> None:
    """Check that the device multiplies matrices of the dtype.

    Raises:
        BackendError: it does not; with the training dtypes that it has.
    """
    import torch  # noqa: PLC0415  the other questions need no torch

    if plugins.backend.supports(dtype):
        return
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    supported = [name for name, candidate in names.items() if plugins.backend.supports(candidate)]
    msg = (
        f"{plugins.label} does not support {str(dtype).removeprefix('torch.')} on this device.\n"
        f"Set precision.dtype to one of: {', '.join(supported) or 'none'}"
    )
    raise BackendError(msg)


def require_compilation(plugins: Plugins, recipe: Recipe) -> None:
    """Check that torch.compile generates kernels for the device, unless the recipe compiles nothing.

    Raises:
        BackendError: it generates none; with the backend's reason and remedy.
    """
    if recipe.kernels.compile == "none":
        return
    answer = ask(plugins, "compilation", "Available or Unavailable", lambda given: isinstance(given, _ANSWERS))
    if isinstance(answer, Unavailable):
        remedy = answer.remedy or "Set kernels.compile to none."
        msg = f"{plugins.label} cannot serve kernels.compile: {recipe.kernels.compile}: {answer.reason}\n{remedy}"
        raise BackendError(msg)


def require_overlap(plugins: Plugins, recipe: Recipe) -> None:
    """Check that the device's stages can compute while they send and receive, if the recipe asks for it.

    Raises:
        BackendError: they cannot.
    """
    if recipe.parallel.overlap_p2p_comm and not plugins.backend.point_to_point().overlapped:
        msg = (
            f"{plugins.label} cannot serve parallel.overlap_p2p_comm: true: its stages do not compute while they send "
            "and receive.\nLeave the key out, or give false."
        )
        raise BackendError(msg)
