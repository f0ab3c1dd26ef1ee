"""Layer norm and RMS norm: what the kernels of Triton, apex and torch keep, and their workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in
from pretrain_cuda.kernels.stand_ins import tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pretrain.plugins.requests import NormRequest
    from pretrain.plugins.signatures import NormFn
    from pretrain.plugins.stand_in import Empty

APEX_PARTS = 16
"""Rows of apex's partial sums of the weights' gradients (HostLayerNormGradient in csrc/layer_norm_cuda_kernel.cu)."""


def triton(request: NormRequest) -> NormFn:
    """Return the stand-in of `triton.norm.Norm`: both statistics are allocated for RMS norm too."""

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor]]:
        del bias
        x, weight = x.contiguous(), weight.contiguous()
        mean, rstd = torch.empty(2, _rows(x), dtype=torch.float32, device=x.device)
        return torch.empty_like(x), (x, weight, mean, rstd)

    def programs(rows: int) -> int:
        size = request.hidden_size
        if size > tiles.NORM_LONGEST:
            return tiles.parts(rows, tiles.NORM_LONG_ROWS, tiles.NORM_LONG_CHUNKS)
        block = 1 << (size - 1).bit_length()
        return tiles.parts(rows, max(1, tiles.NORM_TILE // block), tiles.NORM_PROGRAMS)

    def gradients(kept: Sequence[Tensor], grad: Tensor, empty: Empty) -> tuple[Tensor | None, ...]:
        x, weight = kept[:2]
        grad = grad.contiguous()
        grad_x = torch.empty_like(x)
        sums = _sums(x, 1 + empty.needed(2), programs(_rows(x)))
        whole = sums.sum(dim=1).unbind()
        return grad_x, *(each.to(weight.dtype) for each in whole), *([] if empty.needed(2) else [None])

    return stand_in(compute, gradients)


def apex(request: NormRequest) -> NormFn:
    """Return the stand-in of apex's fused norms: FusedLayerNormAffineFunction and FusedRMSNormAffineFunction."""
    centred = request.kind == "LayerNorm"

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor]]:
        x, weight = x.contiguous(), weight.contiguous()
        bias = torch.zeros_like(weight) if centred and bias is None else bias
        statistics = [torch.empty(_rows(x), dtype=torch.float32, device=x.device) for _ in range(1 + centred)]
        return torch.empty_like(x), (x, weight, *([] if bias is None else [bias]), *statistics)

    return stand_in(compute, _gradients(lambda _: APEX_PARTS))


def apex_fast(request: NormRequest, multiprocessors: int) -> NormFn:
    """Return the stand-in of apex.contrib's FastLayerNormFN.

    Its partial sums have a row for every multiprocessor where a block of threads takes whole rows, and for every other
    where two blocks share one (ctas_per_col in ln_bwd_semi_cuda_kernel.cu): assumed up to 8192 entries, and above.
    """
    of_a_row = 1 if request.hidden_size <= tiles.NORM_LONGEST else 2

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor]]:
        del bias
        x, weight = x.contiguous(), weight.contiguous()
        mean, rstd = (torch.empty(_rows(x), dtype=torch.float32, device=x.device) for _ in range(2))
        return torch.empty_like(x), (x, weight, mean, rstd)

    return stand_in(compute, _gradients(lambda _: multiprocessors // of_a_row))


def by_torch(request: NormRequest) -> NormFn:
    """Return the stand-in of torch's kernels for CUDA, whose statistics are fp32; on a CPU they are the input's dtype.

    native_layer_norm keeps the bias too; _fused_rms_norm is a kernel of its own from torch 2.8 on.
    """
    centred = request.kind == "LayerNorm"

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor]]:
        statistics = [torch.empty(_rows(x), dtype=torch.float32, device=x.device) for _ in range(1 + centred)]
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        return y, (x, weight, *([] if bias is None else [bias]), *statistics)

    return stand_in(compute, _gradients(lambda _: 0))


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _gradients(parts: Callable[[int], int]) -> Callable[[Sequence[Tensor], Tensor, Empty], Sequence[Tensor | None]]:
    """Return the backward pass whose gradients of the weights are added up in so many rows of fp32."""

    def gradients(kept: Sequence[Tensor], grad: Tensor, empty: Empty) -> tuple[Tensor, Tensor | None, Tensor | None]:
        x = kept[0]
        grad = grad.contiguous()
        found = torch.empty_like(x, memory_format=torch.contiguous_format), empty[1], empty[2]
        sums = _sums(x, 1 + empty.needed(2), parts(_rows(x)))
        del sums
        return found

    return gradients


def _sums(x: Tensor, weights: int, parts: int) -> Tensor:
    return torch.empty(weights, parts, x.shape[-1], dtype=torch.float32, device=x.device)
