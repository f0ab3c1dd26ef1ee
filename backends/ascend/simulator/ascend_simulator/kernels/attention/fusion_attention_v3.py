"""npu_fusion_attention_v3, which torch's scaled_dot_product_attention calls: seed, offset and lengths are tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ascend_simulator.kernels.attention import fusion_attention
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_fusion_attention_v3"
LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


@kernel(f"npu::{NAME}")
def forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, ...]:
    """Return context, softmax_max, softmax_sum, nothing, seed and offset."""
    names = [argument.name for argument in torch.ops.npu.npu_fusion_attention_v3.default._schema.arguments[3:]]  # noqa: SLF001
    given = _with_lists(dict(zip(names, rest, strict=False)) | options)
    *tensors, seed, offset, _ = fusion_attention.forward(query, key, value, **given)
    return *tensors, torch.tensor([seed]), torch.tensor([offset])


@kernel("npu::npu_fusion_attention_grad_v3")
def backward(
    *arguments: Any, seed: Tensor | None = None, offset: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, pse and sink."""
    seed, offset = (0 if number is None else int(number) for number in (seed, offset))
    return fusion_attention.backward(*arguments, seed=seed, offset=offset, **_with_lists(options))


def _with_lists(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if name in LENGTHS and value is not None else value for name, value in given.items()}
