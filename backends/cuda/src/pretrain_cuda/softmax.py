"""Softmax kernels for a request."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pretrain.plugins import installed
from pretrain.plugins.offer import offer_unless
from pretrain_cuda.kernels import apex_softmax_limits, triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import SoftmaxRequest
    from pretrain.plugins.signatures import SoftmaxFn


def answers(request: SoftmaxRequest) -> list[Offer | Decline]:
    """Return the kernels for a request, the preferred one first.

    Triton's, because it takes every shape and reads a mask where it is. The extensions are given copies: of the mask,
    with a row for every query, and of the gradient, into which they write. Neither was measured.
    """
    return [
        _triton(request),
        _extension(request, "apex", apex_softmax_limits.apex(request), apex_softmax_limits.MODULES[request.mask]),
        _extension(request, "apex_generic", apex_softmax_limits.apex_generic(request), apex_softmax_limits.GENERIC),
    ]


def _triton(request: SoftmaxRequest) -> Offer | Decline:
    def build(_: object) -> SoftmaxFn:
        return cast("SoftmaxFn", import_module("pretrain_cuda.kernels.triton.softmax").Softmax(request))

    return offer_unless(
        triton_requirements.unsupported_reason(request),
        name="triton",
        build=build,
        provider=triton_requirements.provider(),
        fake=lambda _: _stand_ins().triton(request),
    )


def _extension(request: SoftmaxRequest, name: str, reason: str, module: str) -> Offer | Decline:
    def build(_: object) -> SoftmaxFn:
        return cast("SoftmaxFn", import_module("pretrain_cuda.kernels.apex_softmax").Softmax(request, module))

    def fake(_: object) -> SoftmaxFn:
        return cast("SoftmaxFn", _stand_ins().apex(request, module))

    return offer_unless(reason, name=name, build=build, provider=installed.provider("apex"), fake=fake)


def _stand_ins() -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.softmax")
