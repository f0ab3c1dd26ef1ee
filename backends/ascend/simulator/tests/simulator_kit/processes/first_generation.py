"""A chip of the first generation: float16 saturates and raises a sticky flag, and there is no bfloat16."""

import torch
from torch_npu.npu.utils import clear_npu_overflow_flag, get_npu_overflow_flag

from simulator_kit.programs import tell

found = {}


def overflows(call):
    """Return the results of a call, and whether the flag is raised after it."""
    clear_npu_overflow_flag()
    result = call()
    return {"result": result.flatten()[:2].tolist(), "flag": get_npu_overflow_flag()}


def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


large = torch.full((32, 32), 60000.0, device="npu", dtype=torch.float16)
zero, wide = torch.zeros_like(large), torch.full((2,), 1e6, device="npu")
found["sum"] = overflows(lambda: large + large)
found["negative"] = overflows(lambda: -large - large)
found["nan"] = overflows(lambda: zero / zero)
found["in place"] = overflows(lambda: large.clone().mul_(2))
found["product"] = overflows(lambda: large @ large)
found["foreach"] = overflows(lambda: torch._foreach_mul([large], 2.0)[0])
found["cast"] = overflows(wide.half)
found["fused"] = overflows(lambda: torch.ops.npu.npu_gelu(large * 1) + large)
found["no overflow"] = overflows(lambda: large + 1)
found["filled"] = overflows(lambda: torch.full((2,), float("inf"), device="npu", dtype=torch.float16))
found["fp32"] = overflows(lambda: wide * 1e38)
found["rounded factors"] = [
    (torch.full((4, 4), 1 + 2**-12, device="npu") @ torch.eye(4, device="npu"))[0, 0].item() - 1,
    (torch.full((4, 4), 1 + 2**-12, device="npu") * 1)[0, 0].item() - 1,
]
found["fp32 factor"] = overflows(lambda: torch.full((32, 32), 1e6, device="npu") @ torch.eye(32, device="npu"))
quarter = torch.full((1, 32, 32), 50.0, device="npu", dtype=torch.float16)  # 32 * 50 * 50 is 80,000
empty = torch.empty(1, device="npu", dtype=torch.float16)
found["divided after"] = overflows(lambda: torch.baddbmm(empty, quarter, quarter, beta=0, alpha=0.5))
found["divided before"] = overflows(lambda: torch.bmm(quarter * 0.5, quarter))
large + large
found["sticky"] = [get_npu_overflow_flag(), get_npu_overflow_flag()]

found["bfloat16"] = refused(lambda: torch.ones(2, device="npu").bfloat16() + 1)
q = torch.randn(32, 1, 64, device="npu", dtype=torch.float16)
found["fusion attention"] = refused(lambda: torch.ops.npu.npu_fusion_attention(q, q, q, 2, "SBH"))
found["swiglu"] = refused(lambda: torch.ops.npu.npu_swiglu(q))
found["mixed norm"] = refused(lambda: torch.ops.npu.npu_rms_norm(q, torch.ones(64, device="npu")))
found["name"] = torch.npu.get_device_name()
found["is_bf16_supported"] = torch.npu.is_bf16_supported()
tell(found)
