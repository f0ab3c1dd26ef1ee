"""torch's grouped matmul, on torch's CPU build: the same function, with the same limits of strides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle
from pretrain.conformance.example_calls import grouped_call, uneven_counts
from pretrain.conformance.footprint import footprint, peak_bytes
from pretrain.plugins.offer import Decline, Offer
from pretrain_cuda import grouped_linear
from pretrain_cuda.kernels import grouped_matmul
from pretrain_cuda.kernels.stand_ins import grouped_linear as stand_ins

BF16 = torch.bfloat16
H100 = "NVIDIA H100 80GB HBM3"
ASKED = examples.grouped_linear(BF16, is_gated=True)


@pytest.mark.parametrize("counts", [uneven_counts(35, 5), [0, 0, 0, 0, 1], [0] * 5])
@pytest.mark.parametrize("is_second", [False, True])
def test_it_agrees_with_float64_and_waits_for_nothing(counts, is_second, monkeypatch):
    right = torch.nn.functional.grouped_mm

    def on_a_gpu(a, b, *, offs):
        with torch.utils._python_dispatch._disable_current_modes():  # the CPU's reads its offsets
            y = right(a, b, offs=offs)
        return y if y.dim() == 2 else torch.where((offs.diff(prepend=offs[:1] * 0) == 0).view(-1, 1, 1), torch.nan, y)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", on_a_gpu)
    call = grouped_call(ASKED, counts, is_second=is_second)
    kernels = grouped_matmul.grouped_linear, oracle(ASKED)
    assert_agrees(*kernels, call.inputs, torch.device("cpu"), constants=call.constants, is_strided=is_second)


def test_its_stand_in_keeps_and_allocates_the_same():
    call = grouped_call(ASKED, uneven_counts(35, 5))
    real = footprint(grouped_matmul.grouped_linear, call), peak_bytes(grouped_matmul.grouped_linear, call)
    with FakeTensorMode():
        placed = call.placed(lambda x: torch.empty(x.shape, dtype=x.dtype))
        fake = footprint(stand_ins.grouped_matmul, placed), peak_bytes(stand_ins.grouped_matmul, placed)
    assert not real[0].difference(fake[0])
    assert real[1] == fake[1]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": torch.float32}, "dtype torch.float32; only bf16"),
        ({"hidden_size": 100}, "hidden_size 100; only multiples of 8"),
        ({"ffn_hidden_size": 36}, "ffn_hidden_size 36; only multiples of 8"),
        ({"experts": 1024}, "1024 experts; at most 1023"),
        ({"device_name": "NVIDIA A100-SXM4-80GB"}, "compute capability 8.0; only 9.0 and 10.x"),
        ({"device_name": ""}, "the compute capability of a device that was not named is not known"),
    ],
)
def test_a_decline_names_the_unsupported_value(changed, reason):
    asked = replace(ASKED, device_type="cuda", device_name=H100)
    assert isinstance(grouped_linear.answers(asked), Offer)
    answer = grouped_linear.answers(replace(asked, **changed))
    assert isinstance(answer, Decline)
    assert answer.reason == reason
