"""Wrong fp8 operands, each by a plausible mistake; the sums are right."""

from __future__ import annotations

import torch

from pretrain.plugins.offer import Offer
from pretrain.reference.experts import GroupedLinear
from pretrain.reference.linear import Linear
from pretrain.reference.quantization import Operands, quantized


class Wrong(Operands):
    def rounded(self, x, dim, *, is_gradient=False):
        rows = x.reshape(-1, x.shape[-1])
        return self.round(rows, dim, is_gradient).view(x.shape)


class ByRow(Wrong):
    """Another scale of a row."""

    def round(self, x, dim, is_gradient):
        if self.kind != "rowwise":
            return quantized(x, self.kind, dim, is_gradient=is_gradient)
        scale = self.scale(x.abs().amax(dim, keepdim=True).float().clamp(min=1e-30))
        return ((x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


class FreeScales(ByRow):
    """Not powers of two, as those of Transformer Engine."""

    def scale(self, amax):
        return amax / 448


class Saturating(ByRow):
    """Powers of two that are rounded down, as OCP MX v1.0 has it: large elements are clamped."""

    def scale(self, amax):
        return torch.exp2(amax.log2().floor() - 8)


class OtherDimension(Wrong):
    def round(self, x, dim, is_gradient):
        return quantized(x, self.kind, 1 - dim, is_gradient=is_gradient)


class OneElementType(Wrong):
    def round(self, x, dim, is_gradient):
        return quantized(x, self.kind, dim)


class AlwaysQuantized(Wrong):
    def of_weight(self, grad, x):
        return self.rounded(grad, 0, is_gradient=True), self.rounded(x, 0)

    def round(self, x, dim, is_gradient):
        return quantized(x, self.kind, dim, is_gradient=is_gradient)


WRONG = {
    "free_scales": FreeScales,
    "saturates": Saturating,
    "other_dimension": OtherDimension,
    "one_element_type": OneElementType,
    "ignores_the_wgrad": AlwaysQuantized,
}


def kernels(request):
    """Return wrong linears, or linears of experts, for a request with a quantization."""
    if not request.quantization:
        return []
    kind = Linear if request.operation == "linear" else GroupedLinear
    return [
        Offer(name=name, build=lambda built, wrong=wrong: _kernel(kind, request, wrong))
        for name, wrong in WRONG.items()
    ]


def _kernel(kind, request, wrong):
    kernel = kind(request)
    holder = kernel.matmuls if kind is Linear else kernel
    holder.operands = wrong(request.quantization, quantized_wgrad=request.quantized_wgrad)
    return kernel
