"""Softmax kernels for a request."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pretrain.plugins.offer import offer_unless
from pretrain_cuda import installed, softmax_limits, triton_fit

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
        _extension(request, "apex", softmax_limits.apex(request), softmax_limits.MODULES[request.mask]),
        _extension(request, "apex_generic", softmax_limits.apex_generic(request), softmax_limits.GENERIC),
    ]


def _triton(request: SoftmaxRequest) -> Offer | Decline:
    def build(_: object) -> SoftmaxFn:
        return cast("SoftmaxFn", import_module("pretrain_cuda.softmax_triton").Softmax(request))

    return offer_unless(triton_fit.unfit(request), name="triton", build=build, provider=triton_fit.provider())


def _extension(request: SoftmaxRequest, name: str, reason: str, module: str) -> Offer | Decline:
    def build(_: object) -> SoftmaxFn:
        return cast("SoftmaxFn", import_module("pretrain_cuda.softmax_extension").Softmax(request, module))

    return offer_unless(reason, name=name, build=build, provider=installed.version("apex"))
