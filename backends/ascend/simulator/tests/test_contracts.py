"""Calls that the operators' documentation forbids are errors. A device might crash, or compute something else."""

import pytest
import torch

NPU = torch.ops.npu


def given(*shape, dtype=torch.float16):
    return torch.ones(shape, device="npu", dtype=dtype)


def mask(*shape):
    return given(*shape, dtype=torch.bool)


def grouped(x, weight, counts, group_type):
    options = {"group_list": torch.tensor(counts, device="npu"), "group_type": group_type, "group_list_type": 1}
    return NPU.npu_grouped_matmul([x], [weight], split_item=3, **options)


FORBIDDEN = {
    "fixed_triu_mask": lambda: NPU.npu_scaled_masked_softmax(given(1, 1, 32, 32), mask(1, 1, 32, 32), 1, True),
    "33 rows": lambda: NPU.npu_scaled_masked_softmax(given(1, 1, 33, 32), mask(1, 1, 33, 32)),
    "16 rows": lambda: NPU.npu_scaled_masked_softmax(given(1, 1, 32, 16), mask(1, 1, 32, 16)),
    "4128 rows": lambda: NPU.npu_scaled_masked_softmax(given(1, 1, 32, 4128), mask(1, 1, 1, 4128)),
    "mask is torch.float16": lambda: NPU.npu_scaled_masked_softmax(given(1, 1, 32, 32), given(1, 1, 32, 32)),
    "x is torch.float64": lambda: NPU.npu_scaled_masked_softmax(
        given(1, 1, 32, 32, dtype=torch.float64), mask(1, 1, 32, 32)
    ),
    "a mask of (1, 1, 64, 64) for scores of": lambda: NPU.npu_scaled_masked_softmax(
        given(1, 1, 32, 32), mask(1, 1, 64, 64)
    ),
    "only 4": lambda: NPU.npu_scaled_masked_softmax(given(32, 32), mask(32, 32)),
    "a weight of (8,)": lambda: NPU.npu_rms_norm(given(2, 16), given(8)),
    "x torch.float32, gamma torch.float16": lambda: NPU.npu_rms_norm(given(2, 8, dtype=torch.float32), given(8)),
    "r1 torch.float32": lambda: NPU.npu_rotary_mul(given(4, 1, 2, 8), *2 * [given(4, 1, 1, 8, dtype=torch.float32)]),
    "heads of 7": lambda: NPU.npu_rotary_mul(given(4, 1, 2, 7), *2 * [given(4, 1, 1, 7)]),
    "heads of 896": lambda: NPU.npu_rotary_mul(given(4, 1, 2, 896), *2 * [given(4, 1, 1, 896)]),
    "for (4, 1, 2, 8)": lambda: NPU.npu_rotary_mul(given(4, 1, 2, 8), *2 * [given(3, 1, 1, 8)]),
    "only an even number": lambda: NPU.npu_swiglu(given(2, 7)),
    "a target outside of 3 classes": lambda: NPU.npu_cross_entropy_loss(
        given(2, 3), torch.tensor([0, 3], device="npu")
    ),
    "target is torch.int32": lambda: NPU.npu_cross_entropy_loss(given(2, 3), given(2, dtype=torch.int32)),
    "6 rows are listed; x has 5": lambda: grouped(given(5, 8), given(2, 8, 4), [3, 3], 0),
    "a weight of (3, 8, 4)": lambda: grouped(given(5, 8), given(3, 8, 4), [3, 2], 0),
    "x is not transposed": lambda: grouped(given(8, 5), given(5, 4), [3, 2], 2),
    "x torch.float16, weight torch.float32": lambda: grouped(
        given(5, 8), given(2, 8, 4, dtype=torch.float32), [3, 2], 0
    ),
    "indices of (4,)": lambda: NPU.npu_moe_token_permute(given(4, 8), torch.arange(4, device="npu")),
    "sorted_indices is torch.int64": lambda: NPU.npu_moe_token_unpermute(given(4, 8), torch.arange(4, device="npu")),
    "8 weights for 4 rows": lambda: NPU.npu_moe_token_unpermute(
        given(4, 8), torch.arange(4, device="npu", dtype=torch.int32), given(4, 2)
    ),
    "4 words": lambda: NPU.npu_get_float_status(torch.zeros(4, device="npu")),
}


@pytest.mark.parametrize("words", FORBIDDEN)
def test_it_is_refused_with_a_reason(npu, words):
    with pytest.raises(RuntimeError) as error:
        FORBIDDEN[words]()
    assert words in str(error.value)
