"""Attention of a chip that rounds matmuls before they are scaled, with scores that fp16 does not hold."""

import torch
from torch_npu.npu.utils import clear_npu_overflow_flag, get_npu_overflow_flag

from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import AttentionRequest, Mask
from pretrain.reference.attention import Attention
from pretrain_ascend import attention
from simulator_kit.programs import tell

LENGTH, SIZE, DIVISOR = 64, 64, 24.0
shape = (LENGTH, 1, 2, SIZE)
generator = torch.Generator().manual_seed(0)
query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
query, key = (x * 36.0 + 30 for x in (query, key))
found = {"largest raw score": 0.0}


def request_of(mask, dtype=torch.float16, device_type="npu"):
    return AttentionRequest(
        device_type=device_type, device_name="Ascend910A", dtype=dtype, heads=2, query_groups=2, head_size=SIZE,
        seq_length=LENGTH, micro_batch_size=1, mask=mask, scale=SIZE**-0.5, score_divisor=DIVISOR, block_size=32,
    )  # fmt: skip


given = [x.half() for x in (query, key, value)]
found["largest raw score"] = torch.einsum("sbnd,tbnd->bnst", *(x.double() for x in given[:2])).abs().max().item()
later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None, None]


def judge(kernel, mask):
    """Return the largest error against float64, and whether the flag was raised."""
    tensors = (later,) if mask is Mask.ARBITRARY else ()
    expected = Attention(request_of(mask, torch.float64, "cpu"))(*(x.double() for x in given), *tensors)
    clear_npu_overflow_flag()
    result = kernel(*(x.npu() for x in given), *(x.npu() for x in tensors))
    flag = get_npu_overflow_flag()
    return {"error": (result.cpu().double() - expected).abs().max().item(), "flag": flag}


for mask in (Mask.CAUSAL, Mask.ARBITRARY):
    request = request_of(mask)
    for answer in attention.answers(request):
        if isinstance(answer, Offer):
            found[f"{answer.name} {mask}"] = judge(answer.build({}), mask)
    found[f"core {mask}"] = judge(Attention(request), mask)
tell(found)
