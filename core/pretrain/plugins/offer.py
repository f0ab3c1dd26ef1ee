"""Answers of a plugin to a kernel request: offer or decline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A kernel that serves the request exactly."""

    name: str
    """What the kernel is called in the kernel table and in `kernels: {<operation>: <name>}` of a recipe."""
    build: Callable[[Mapping[str, Any]], Any]
    """Makes the callable; called at most once, when the offer is taken. It is given the kernels negotiated before it,
    by operation name: `attention` may use `built["softmax"]`."""
    kind: str = ""
    """A portable family name that a recipe may use instead of `name`; for attention one of "flash", "triangle",
    "softmax"."""
    provider: str = ""
    """The library and version that does the work ("flash-attn 2.8.3"); empty means the plugin itself."""
    fake: Callable[[Mapping[str, Any]], Any] | None = None
    """Makes the kernel's stand-in, which `pretrain plan` runs on torch's fake tensors instead of the kernel: the same
    call, outputs of the same shapes and dtypes, and the same tensors kept for the backward pass
    (`pretrain.plugins.stand_in`); given what `build` is given. None: the kernel is plain torch, and runs on fake
    tensors itself. Contract 1.1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decline:
    """A kernel that exists here but does not fit this request."""

    name: str
    """The kernel that declines."""
    reason: str
    """What does not fit, with the value that was asked and the value that is allowed."""
    kind: str = ""


class Absent(str):
    """Reason to decline every request on this machine: a library is missing, or the device is of another kind.

        Decline(name="apex", reason=Absent("apex is not installed; pip install ..."))

    It is shown as any other reason. The conformance kit lists such a kernel as absent. A kernel that declines all
    requests with other reasons fails the kit.
    """

    __slots__ = ()


def offer_unless(
    reason: str,
    *,
    name: str,
    build: Callable[[Mapping[str, Any]], Any],
    kind: str = "",
    provider: str = "",
    fake: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Offer | Decline:
    """Return a `Decline` with the reason, or the `Offer` where the reason is ""."""
    if reason:
        return Decline(name=name, kind=kind, reason=reason)
    return Offer(name=name, kind=kind, build=build, provider=provider, fake=fake)


Answer = Offer | Decline | Sequence[Offer | Decline] | None
"""None: this plugin has nothing for the operation. A sequence: several kernels, the preferred one first."""
