"""docs/hooks.md, generated from the hookspecs, the requests, the callables and `Backend`.

Run `.venv/bin/python docs/generate/hooks_page.py` after changing one of them.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.plugins import backend, collective_record, hookspecs, logger, offer, requests, signatures
from pretrain.plugins.contract import removal_of
from pretrain.plugins.device_module import MEMBERS
from pretrain.plugins.host.manager import HOOKS
from pretrain.plugins.negotiation.kernels import Kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = "hooks.md"

_INTRODUCTION = """\
# Hooks

Generated from `core/pretrain/plugins` (`python docs/generate/hooks_page.py`); `writing-a-backend.md` is the
guide. Import the mark from `pretrain.plugins`, `Offer` and `Decline` from `pretrain.plugins.offer`, requests from
`pretrain.plugins.requests`, `Backend` from `pretrain.plugins.backend`. A hook may leave out the argument that it does
not need. A kernel is called by position, with all parameters of its signature: what they are called is a plugin's own
matter, but for `training`, which stands after `*`. The marks `tryfirst`, `trylast` and `wrapper` are refused;
`optionalhook=True` lets a plugin implement a hook that this version of pretrain does not have."""


_MODULE = """\
torch has a module for each type of device. A device that is new to torch brings its own: the vendor's library makes it
with `torch.utils.rename_privateuse1_backend` and `torch._register_device_module`, when `Backend.availability` imports
the library. This is all of the module that pretrain, megatron-core and DeepSpeed use while training; names and meanings
are as in torch's modules for GPUs. The conformance kit tests each (`TestDeviceModule`)."""


def page() -> str:
    """Return docs/hooks.md."""
    hooks = (part for hook in HOOKS for part in _hook(hook))
    return "\n\n".join([_INTRODUCTION, *_shared(), *hooks, *_module()]) + "\n"


def signature(hook: str) -> str:
    """Return a hook's signature as it stands in the source: "pretrain_norm(request: NormRequest) -> Answer"."""
    found = inspect.signature(getattr(hookspecs, hook))
    arguments = ", ".join(f"{name}: {parameter.annotation}" for name, parameter in found.parameters.items())
    return f"{hook}({arguments}) -> {found.return_annotation}"


def request_type(hook: str) -> type[requests.Request] | None:
    """Return the type of a kernel hook's argument; None for `pretrain_backend` and `pretrain_logger`."""
    parameter = inspect.signature(getattr(hookspecs, hook)).parameters.get("request")
    return getattr(requests, parameter.annotation) if parameter else None


def example(hook: str) -> str:
    """Return the example of a hook's docstring, as code."""
    _, _, code = _docstring(getattr(hookspecs, hook)).partition("Example:\n")
    return inspect.cleandoc(code)


def _shared() -> Iterator[str]:
    yield "## Answers"
    yield _docstring(hookspecs).partition("\n\n")[2]
    yield _code("\n\n\n".join(_source(kind) for kind in (offer.Offer, offer.Decline)))
    yield "## What all requests say"
    yield _docstring(requests).partition("\n\n")[2]
    yield _code(f"{_source(requests.Request)}\n\n\n{_source(requests.Mask)}")


def _hook(hook: str) -> Iterator[str]:
    yield f"## {hook}"
    yield _code(f"@hookimpl\ndef {signature(hook)}: ...")
    yield _docstring(getattr(hookspecs, hook)).partition("Example:\n")[0].strip()
    yield _code(example(hook))
    removal = removal_of(getattr(hookspecs, hook))
    if removal:
        yield f"To be removed: {removal}"
    if hook == "pretrain_logger":
        yield "A logger is told of a run by these:"
        kinds = (logger.Logger, logger.Run, logger.Point, logger.Metrics, logger.LoggedEvent)
        yield _code("\n\n\n".join(map(_source, kinds)))
        return
    request = request_type(hook)
    if request is None:
        yield "The device is an object of this class:"
        yield _code(_source(backend.Backend))
        yield "`Backend.recent_collectives` returns:"
        yield _code(_source(collective_record.CalledCollective))
        yield "`Backend.profiler` and `Backend.memory_recorder` return:"
        yield _code(f"{_source(backend.DeviceProfiler)}\n\n\n{_source(backend.MemoryRecorder)}")
        return
    yield "Asked with:"
    yield _code(_source(request))
    yield "The kernel that `build` returns:"
    yield _code("\n\n\n".join(_source(kind) for kind in _kernel_types(request.operation)))


def _module() -> Iterator[str]:
    yield "## `torch.<device>`"
    yield _MODULE
    needed = [(f"{member.name}{member.call}", member.purpose) for member in MEMBERS if member.needed]
    yield _table(("needed", "for"), needed)
    others = [(f"{other.name}{other.call}", other.purpose, other.otherwise) for other in MEMBERS if not other.needed]
    yield _table(("taken where it is there", "for", "otherwise"), others)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [header, ["---" for _ in header], *([f"`{row[0]}`", *row[1:]] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _kernel_types(operation: str) -> list[Any]:
    """Return the type of an operation's kernel, and those that its source mentions."""
    kind = getattr(signatures, Kernels.__annotations__[operation])
    mentioned = re.findall(r"`(\w+Fn)`", _source(kind))
    return [kind, *(getattr(signatures, name) for name in mentioned)]


def _docstring(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _source(thing: Any) -> str:
    return inspect.getsource(thing).rstrip()


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


if __name__ == "__main__":
    (Path(__file__).parents[1] / PAGE).write_text(page(), encoding="utf-8")
