"""Attention kernels as backends that the conformance kit can test here: each without its conditions on the device.

All but the triangle stay on the CPU where a GPU is too: only the call is tested. torch's flash attention for a GPU
takes neither fp32 nor masks, which its kernel for a CPU does, and the libraries are stood in for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.attention import SDPBackend

from kit import fake_flash_attn
from kit.interpreted import Interpreted
from kit.interpreted import pretrain_backend as device_backend
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda.attention import answers
from pretrain_cuda.kernels import flash_attn as flash_attn_kernels
from pretrain_cuda.kernels.sdpa import kernel_for
from pretrain_cuda.kernels.transformer_engine import DotProductAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.plugins.backend import Backend
    from pretrain.plugins.requests import AttentionRequest


class Hooks:
    """A backend with one way to answer."""

    CONTRACT = CONTRACT

    def __init__(
        self,
        answer: Callable[[AttentionRequest], Offer | Decline | list[Offer | Decline]],
        device: Callable[[], Backend] = Interpreted,
    ) -> None:
        self._answer, self._device = answer, device

    @hookimpl
    def pretrain_backend(self) -> Backend:
        return self._device()

    @hookimpl
    def pretrain_attention(self, request: AttentionRequest) -> Offer | Decline | list[Offer | Decline]:
        return self._answer(request)


def _triangle(request):
    return answers(request)[-1]


def _sdpa(request):
    """Both kernels that torch has on a CPU. Only flash is one of those offered, but there it has no dropout."""
    if request.keys:
        return [Decline(name=name, reason=f"{request.keys} keys") for name in ("sdpa_flash", "sdpa_math")]
    if request.dropout:
        flash = Decline(name="sdpa_flash", reason="torch's flash attention has no dropout on a CPU")
    else:
        flash = Offer(name="sdpa_flash", build=lambda _: kernel_for(request, SDPBackend.FLASH_ATTENTION))
    return [flash, Offer(name="sdpa_math", build=lambda _: kernel_for(request, SDPBackend.MATH))]


def _flash_attn(request):
    if request.mask in (Mask.KEY_PADDING, Mask.ARBITRARY):
        return Decline(name="flash_attn_2", reason=f"mask {request.mask}")
    return Offer(name="flash_attn_2", build=lambda _: flash_attn_kernels.around(request, fake_flash_attn))


def _transformer_engine(request):
    if request.mask not in (Mask.NONE, Mask.CAUSAL):
        return Decline(name="transformer_engine", reason=f"mask {request.mask}")
    if request.window is not None:
        return Decline(name="transformer_engine", reason=f"window {request.window}")
    if request.keys:
        return Decline(name="transformer_engine", reason=f"{request.keys} keys")
    return Offer(name="transformer_engine", build=lambda _: DotProductAttention(request))


def _device() -> Backend:
    """A function without the mark of a hook: an attribute that has it would be taken for one."""
    return device_backend()


transformer_engine_attention = Hooks(_transformer_engine)
triangle, sdpa, flash_attn = Hooks(_triangle, _device), Hooks(_sdpa), Hooks(_flash_attn)
