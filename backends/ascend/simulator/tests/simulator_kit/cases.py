"""torch_npu's operators, each beside what it is to calculate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable

NPU = torch.ops.npu


@dataclass(frozen=True)
class Case:
    """An operator's call, a function of the same tensors, and their shapes; constants come after them."""

    call: Callable[..., Any]
    expected: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    constants: tuple[torch.Tensor, ...] = ()


def rms_norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def turned(x, r1, r2):
    first, second = x.chunk(2, -1)
    return x * r1 + torch.cat((-second, first), -1) * r2


def turned_in_pairs(x, r1, r2):
    turn = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * 1j
    return x * r1 + torch.view_as_real(turn).flatten(-2) * r2


def swiglu(x):
    first, second = x.chunk(2, -1)
    return F.silu(first) * second


MASK = torch.ones(32, 64, dtype=torch.bool).triu(40)[None, None]
TARGET = torch.tensor([0, 6, 3, 3, -100])

COUNTS = torch.tensor([3, 0, 4])
CHOSEN = torch.tensor([[0, 2], [1, 2], [0, 1], [0, 2]], dtype=torch.int32)


def grouped(x, weight, counts, group_type):
    options = {"group_list": counts, "group_type": group_type, "group_list_type": 1, "split_item": 3}
    return NPU.npu_grouped_matmul([x], [weight], **options)[0]


CASES = {
    "scaled_masked_softmax": Case(
        lambda x, mask: NPU.npu_scaled_masked_softmax(x, mask, 0.5),
        lambda x, mask: (x * 0.5).masked_fill(mask, -math.inf).softmax(-1),
        ((2, 3, 32, 64),),
        (MASK,),
    ),
    "rms_norm": Case(lambda x, w: NPU.npu_rms_norm(x, w, 1e-5), rms_norm, ((3, 5, 16), (16,))),
    "rotary_mul": Case(NPU.npu_rotary_mul, turned, ((5, 2, 3, 8), (5, 1, 1, 8), (5, 1, 1, 8))),
    "rotary_mul interleaved": Case(
        lambda x, c, s: NPU.npu_rotary_mul(x, c, s, "interleave"),
        turned_in_pairs,
        ((5, 2, 3, 8), (5, 1, 1, 8), (5, 1, 1, 8)),
    ),
    "swiglu": Case(NPU.npu_swiglu, swiglu, ((3, 4, 10),)),
    "gelu": Case(NPU.npu_gelu, F.gelu, ((3, 7),)),
    "gelu tanh": Case(
        lambda x: NPU.npu_gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), ((3, 7),)
    ),
    "fast_gelu": Case(NPU.fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), ((3, 7),)),
    "cross_entropy_loss": Case(
        lambda x, target: NPU.npu_cross_entropy_loss(x, target, reduction="none"),
        lambda x, target: F.cross_entropy(x, target, reduction="none"),
        ((5, 7),),
        (TARGET,),
    ),
    "cross_entropy_loss mean": Case(
        NPU.npu_cross_entropy_loss, lambda x, t: F.cross_entropy(x, t)[None], ((5, 7),), (TARGET,)
    ),
    "grouped_matmul by rows": Case(
        lambda x, w, counts: grouped(x.detach(), w.detach(), counts, 0) + 0 * (x.sum() + w.sum()),
        lambda x, w, _: (
            torch.cat([a @ b for a, b in zip(x.split((3, 0, 4)), w, strict=True)]).detach() + 0 * (x.sum() + w.sum())
        ),
        ((7, 8), (3, 8, 5)),
        (COUNTS,),
    ),
    "moe_token_permute": Case(
        NPU.npu_moe_token_permute, lambda x, chosen: x[chosen.flatten().argsort(stable=True) // 2], ((4, 6),), (CHOSEN,)
    ),
    "moe_token_unpermute": Case(
        lambda rows, probs, places: NPU.npu_moe_token_unpermute(rows, places, probs),
        lambda rows, probs, places: (rows[places.long()].view(4, 2, 6) * probs.unsqueeze(-1)).sum(1),
        ((8, 6), (4, 2)),
        (CHOSEN.flatten().argsort(stable=True).argsort().int(),),
    ),
    "linear": Case(lambda x, w: x @ w.mT, lambda x, w: x @ w.mT, ((2, 3, 8), (5, 8))),
    "matmul of a vector": Case(torch.matmul, torch.matmul, ((4, 3, 8), (8,))),
    "matmul, broadcast": Case(torch.matmul, torch.matmul, ((4, 1, 3, 8), (2, 8, 5))),
}
