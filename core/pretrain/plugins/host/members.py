"""Checked calls of a backend's members, and what a run requires of its device.

A wrong value is an error that names the distribution. `take_device` calls each member as soon as the device is the
current one, before anything is built on it. There is no fallback to another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError, DeviceError
from pretrain.plugins.backend import Available, Backend, Memory, PointToPoint, Unavailable
from pretrain.plugins.host.discovery import cause

if TYPE_CHECKING:
    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


Check = Callable[[Any], bool]


def take_device(plugins: Plugins, local_rank: int) -> torch.device:
    """Make the device of this rank the current one and return it, after calling every member once.

    DeviceError: it cannot be made the current one. BackendError: a member raised, or broke its contract.
    """
    import torch  # noqa: PLC0415  a launcher imports this module too, and does without torch

    backend = plugins.backend
    kind = backend.device_type

    def is_device(answer: Any) -> bool:
        return isinstance(answer, torch.device) and answer.type == kind

    allowed = f"a torch.device of type '{kind}'"
    device: torch.device = ask(plugins, "device", allowed, is_device, local_rank, raises=DeviceError)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ask(plugins, "supports", "True or False", _is_bool, dtype)
        ask(plugins, "peak_flops", "a number above 0, or None", _is_rate, dtype)
    ask(plugins, "supports_reduction", "True or False", _is_bool, torch.float32)
    ask(plugins, "memory", "a Memory of bytes or None", _is_memory)
    ask(plugins, "pinned_memory", "True or False", _is_bool)
    ask(plugins, "point_to_point", "a PointToPoint", lambda answer: isinstance(answer, PointToPoint))
    ask(plugins, "overflow", "an object with clear() and read(), or None", _is_overflow)
    ask(plugins, "device_name", "a string", lambda answer: isinstance(answer, str))
    ask(plugins, "describe", "a mapping of strings to strings", _is_text)
    require_process_group(plugins)
    return device


def device_count(plugins: Plugins) -> int | None:
    """Return `Backend.device_count`, checked."""
    count: int | None = ask(plugins, "device_count", "a number from 0, or None", _is_count)
    return count


def environment(plugins: Plugins, recipe: Recipe) -> Mapping[str, str]:
    """Return the environment variables of `Backend.prepare`, checked."""
    variables: Mapping[str, str] = ask(plugins, "prepare", "a mapping of strings to strings", _is_text, recipe)
    return variables


def named(plugins: Plugins, device_name: str) -> Plugins:
    """Return the plugins with the backend as it would answer on a device of that name: `Backend.named`."""
    backend = ask(plugins, "named", "a Backend", lambda answer: isinstance(answer, Backend), device_name)
    return replace(plugins, backend=backend)


def require_module(plugins: Plugins) -> Any:
    """Return torch's module of the device, which `availability` registers if torch does not know it itself."""
    import torch  # noqa: PLC0415

    try:
        return torch.get_device_module(plugins.backend.device_type)
    except RuntimeError as exc:
        msg = (
            f"{plugins.label}: torch {torch.__version__} knows no device '{plugins.backend.device_type}', which is its "
            f"Backend.device_type: {cause(exc)}\nImport the library that registers it with torch in availability(); "
            "see docs/writing-a-backend.md."
        )
        raise BackendError(msg) from exc


def require_process_group(plugins: Plugins) -> None:
    """Check that torch.distributed knows `Backend.process_group`: a name, or "cpu:gloo,<device>:<name>"."""
    import torch.distributed as dist  # noqa: PLC0415

    given = plugins.backend.process_group
    names = [part.rpartition(":")[2].strip().lower() for part in given.split(",")]
    unknown = [name for name in names if name not in dist.Backend.backend_list]
    if unknown:
        known = ", ".join(name for name in dist.Backend.backend_list if name != "undefined")
        msg = (
            f"{plugins.label}: torch.distributed has no backend '{unknown[0]}', which its Backend.process_group "
            f"'{given}' names. Known: {known}.\nImport the library that registers it in availability() or device() "
            "(torch.distributed.Backend.register_backend)."
        )
        raise BackendError(msg)


def ask(
    plugins: Plugins,
    member: str,
    allowed: str,
    is_right: Check,
    *arguments: object,
    raises: type[BackendError] = BackendError,
) -> Any:
    """Return a member's answer, or raise BackendError: `is_right` says whether it is `allowed`.

    A member that raises is an error of the class `raises`.
    """
    call = f"{type(plugins.backend).__name__}.{member}({', '.join(map(_shown, arguments))})"
    try:
        answer = getattr(plugins.backend, member)(*arguments)
    except BackendError as exc:
        if isinstance(exc, raises):
            raise
        raise raises(str(exc)) from exc
    except Exception as exc:
        msg = f"{plugins.label}: {call} raised {cause(exc)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise raises(msg) from exc
    if not is_right(answer):
        msg = (
            f"{plugins.label}: {call} returned {type(answer).__name__}: {answer!r:.80}\n"
            f"Allowed: {allowed}. Report it to its author; docs/hooks.md has every member."
        )
        raise BackendError(msg)
    return answer


def _shown(argument: object) -> str:
    return "recipe" if type(argument).__name__ == "Recipe" else str(argument)


def _is_availability(answer: Any) -> bool:
    return isinstance(answer, Available | Unavailable)


def _is_bool(answer: Any) -> bool:
    return isinstance(answer, bool)


def _is_count(answer: Any) -> bool:
    return answer is None or (isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0)


def _is_rate(answer: Any) -> bool:
    return answer is None or (isinstance(answer, int | float) and not isinstance(answer, bool) and answer > 0)


def _is_memory(answer: Any) -> bool:
    return isinstance(answer, Memory) and all(map(_is_count, (answer.allocated, answer.peak, answer.total)))


def _is_text(answer: Any) -> bool:
    return isinstance(answer, Mapping) and all(isinstance(part, str) for pair in answer.items() for part in pair)


def _is_overflow(answer: Any) -> bool:
    return answer is None or all(callable(getattr(answer, name, None)) for name in ("clear", "read"))


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
    """Return the backend's answer when the device can be used, or raise DeviceError with its reason and remedy."""
    answer = availability(plugins)
    if isinstance(answer, Available):
        return answer
    remedy = answer.remedy or "`pretrain backends` shows what can be used on this machine."
    msg = f"{plugins.label} has no usable device: {answer.reason}\n{remedy}"
    raise DeviceError(msg)


def require_dtype(plugins: Plugins, dtype: torch.dtype) -> None:
    """Check that the device multiplies matrices of the dtype."""
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
    """Check that torch.compile generates kernels for the device, unless the recipe compiles nothing."""
    if recipe.kernels.compile == "none":
        return
    answer = ask(plugins, "compilation", "Available or Unavailable", _is_availability)
    if isinstance(answer, Unavailable):
        remedy = answer.remedy or "Set kernels.compile to none."
        msg = f"{plugins.label} does not support kernels.compile: {recipe.kernels.compile}: {answer.reason}\n{remedy}"
        raise BackendError(msg)


def require_overlap(plugins: Plugins, recipe: Recipe) -> None:
    """Check that the device's stages can compute while they send and receive, if the recipe asks for it."""
    if recipe.parallel.overlap_p2p_comm and not plugins.backend.point_to_point().overlapped:
        msg = (
            f"{plugins.label} does not support parallel.overlap_p2p_comm: true: its stages cannot compute while they "
            "send and receive.\nLeave the key out, or give false."
        )
        raise BackendError(msg)
