"""flash-attn's functions of its three generations: what they keep, and the workspaces of their backward passes.

Each stands in for both functions: for samples of one length, query [b, s, n, d], and for documents, query [all queries,
n, d], whose ends are kept, and whose sums are longer by a tile for each document.

Sizes are those of commit 0251105a: csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp and
flash_attn/cute/interface.py. Left out are sums over parts of the keys, which the forward passes make where a batch has
too few queries to occupy the GPU, and counters of a few bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.stand_in import stand_in
from pretrain_cuda.devices import BLACKWELL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from pretrain.plugins.stand_in import Empty
    from pretrain_cuda.devices import Architecture

    Function = Callable[..., Tensor]
    Kept = Sequence[Tensor]

SHARED_KERNEL = 256
"""Head size for which flash-attn 4 has a kernel of its own on Blackwell, which needs no sums in fp32."""


def flash_2(multiprocessors: int) -> Function:
    """Return the stand-in of flash-attn 2's functions.

    Its Python code pads heads to a multiple of 8, and keeps the padded tensors.

    Args:
        multiprocessors: of the device; deterministic sums are made for as many parts as occupy them.
    """

    def function(q: Tensor, k: Tensor, v: Tensor, *, deterministic: bool = False, **settings: Any) -> Tensor:
        return stand_in(_compute_2, _gradients_2(multiprocessors if deterministic else 0))(q, k, v, *_ends(settings))

    return function


def _ends(settings: Mapping[str, Any]) -> list[Tensor]:
    """Return the ends of documents' queries and keys among the arguments; none of them for samples of one length."""
    return [settings[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if name in settings]


def _compute_2(q: Tensor, k: Tensor, v: Tensor, *ends: Tensor) -> tuple[Tensor, Kept]:
    size = q.shape[-1]
    q, k, v = (_padded(x) for x in (q, k, v))
    out = torch.empty_like(q)
    state = q.new_empty(2, dtype=torch.int64)
    return out[..., :size], (q, k, v, out, log_sums(q), state, *ends)


def _gradients_2(multiprocessors: int) -> Callable[[Kept, Tensor, Empty], tuple[Tensor | None, ...]]:
    def gradients(kept: Kept, grad: Tensor, _: Empty) -> tuple[Tensor | None, ...]:
        q, k, v, _out, _log_sums, _state, *ends = kept
        size = grad.shape[-1]
        found = [torch.empty_like(x) for x in (q, k, v)]
        grad = _padded(grad)
        workspace = workspace_2(q, k, multiprocessors, _documents(ends))
        del workspace
        return (*(x[..., :size] for x in found), *(None for _ in ends))

    return gradients


def _documents(ends: Kept) -> int:
    return ends[0].shape[0] - 1 if ends else 0


def workspace_2(q: Tensor, k: Tensor, multiprocessors: int = 0, documents: int = 0) -> list[Tensor]:
    """Return what its backward pass allocates beside the gradients, for query and key with padded heads.

    The sums of the query's gradient in fp32, heads rounded up to 32 entries or, above 128, to 64; products of
    gradients and outputs; gradients of key and value for every query head where these share them.
    """
    *batch, length, heads, size = q.shape
    rounded = length + 128 * documents if documents else _up(length, 128)
    wide = _up(size, 32 if size <= 128 else 64)
    parts = -(-multiprocessors // ((documents or batch[0]) * heads)) if multiprocessors else 1
    workspace = [_fp32(q, *batch, heads, rounded), _fp32(q, parts, *batch, rounded, heads, wide)]
    if k.shape[-2] != heads:
        workspace += [q.new_empty(*batch, k.shape[-3], heads, size) for _ in range(2)]
    return workspace


def flash_3() -> Function:
    """Return the stand-in of flash-attn 3's functions."""
    return _later(_hopper_sums)


def flash_4(architecture: Architecture) -> Function:
    """Return the stand-in of flash-attn 4's functions, of which the architecture decides the tiles."""
    return _later(_hopper_sums_4 if architecture < BLACKWELL else _blackwell_sums)


def _later(sums: Callable[[Tensor, Tensor, bool, int], list[Tensor]]) -> Function:
    """Return a function whose result is contiguous, unlike that of flash-attn 2."""

    def compute(q: Tensor, k: Tensor, v: Tensor, *ends: Tensor) -> tuple[Tensor, Kept]:
        out = q.new_empty(q.shape)
        return out, (q, k, v, out, log_sums(q), *ends)

    def function(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **settings: Any) -> Tensor:
        def gradients(kept: Kept, grad: Tensor, _: Empty) -> tuple[Tensor | None, ...]:
            found = tuple(torch.empty_like(x) for x in kept[:3])
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            workspace = sums(kept[0], kept[1], causal, _documents(ends))
            del workspace
            return (*found, *(None for _ in ends))

        ends = _ends(settings)
        return stand_in(compute, gradients)(q, k, v, *ends)

    return function


def _hopper_sums(q: Tensor, k: Tensor, causal: bool, documents: int) -> list[Tensor]:
    """FA3: tiles that mha_bwd repeats from its kernels (kBlockM_sm90, kBlockN_sm90), heads of listed sizes."""
    wide = next(size for size in (64, 96, 128, 192, 256) if q.shape[-1] <= size)
    return _sums(q, k, wide, *_hopper_tiles(wide, causal, last=80), documents)


def _hopper_sums_4(q: Tensor, k: Tensor, causal: bool, documents: int) -> list[Tensor]:
    """FA4: nearly the tiles of FA3 (_tile_size_bwd_sm90), heads rounded up to 32 entries."""
    return _sums(q, k, _up(q.shape[-1], 32), *_hopper_tiles(q.shape[-1], causal, last=64), documents)


def _hopper_tiles(size: int, causal: bool, last: int) -> tuple[int, int]:
    """Return queries and keys of a tile; `last`: keys for the largest heads."""
    if size <= 64:
        return 128, 128
    if size <= 128:
        return 80 if size > 96 and not causal else 64, 128
    return 64, 96 if size <= 192 else last


def _blackwell_sums(q: Tensor, k: Tensor, causal: bool, documents: int) -> list[Tensor]:
    """FA4: tiles of 128 x 128, keys in pairs of tiles for heads from 128 entries on."""
    del causal
    size = q.shape[-1]
    if size == SHARED_KERNEL:
        return _statistics(q, _up(q.shape[-3] + 128 * documents, 128))
    return _sums(q, k, _up(size, 32), 128, 256 if size >= 128 else 128, documents)


def _sums(q: Tensor, k: Tensor, wide: int, queries: int, keys: int, documents: int) -> list[Tensor]:
    """Return two statistics of the queries, sums of their gradient, and of the others' where query heads share keys."""
    *batch, length, heads, _ = q.shape
    *_, length_of_keys, groups, _ = k.shape
    rounded, rounded_keys = _up(length + documents * queries, queries), _up(length_of_keys + documents * keys, keys)
    workspace = [*_statistics(q, rounded), _fp32(q, *batch, heads, rounded * wide)]
    if groups != heads:
        workspace += [_fp32(q, *batch, groups, rounded_keys * wide) for _ in range(2)]
    return workspace


def _statistics(q: Tensor, rows: int) -> list[Tensor]:
    *batch, _, heads, _ = q.shape
    return [_fp32(q, *batch, heads, rows) for _ in range(2)]


def log_sums(q: Tensor) -> Tensor:
    """Return the logarithms of the rows' sums of exponentials, fp32 [b, n, s], for query [b, s, n, d]."""
    *batch, length, heads, _ = q.shape
    return _fp32(q, *batch, heads, length)


def _fp32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _padded(x: Tensor) -> Tensor:
    return F.pad(x, [0, -x.shape[-1] % 8]) if x.shape[-1] % 8 else x


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
