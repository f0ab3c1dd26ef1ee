"""Ascend910A: float16 saturates, the flag is sticky, features of later chips are refused."""

import pytest
import torch

from simulator_kit import programs

pytestmark = pytest.mark.xdist_group("ranks")  # one worker: one start of the program, forked as ranks are


@pytest.fixture(scope="module")
def found():
    return programs.run("first_generation", ASCEND_SIMULATOR_SOC="Ascend910A")[0]


@pytest.mark.parametrize("what", ["sum", "in place", "product", "foreach", "cast"])
def test_an_overflow_is_the_largest_number_and_raises_the_flag(found, what):
    assert found[what] == {"result": [65504.0, 65504.0], "flag": True}


def test_so_is_a_negative_one_and_nan_is_zero(found):
    assert found["negative"] == {"result": [-65504.0, -65504.0], "flag": True}
    assert found["nan"] == {"result": [0.0, 0.0], "flag": True}


def test_kernels_of_torch_npu_s_own_operators_raise_it_too(found):
    assert found["fused"]["flag"]


def test_nothing_else_raises_it(found):
    assert found["no overflow"] == {"result": [60000.0, 60000.0], "flag": False}
    assert found["filled"]["flag"] is False
    assert found["fp32"]["flag"] is False


def test_a_product_of_fp32_is_one_of_fp16(found):
    """torch_npu's SetPrecisionMode, and aclnnMm's documentation of cubeMathType; other operations keep fp32."""
    assert found["rounded factors"] == [0.0, 2**-12]
    assert found["fp32 factor"] == {"result": [65504.0, 65504.0], "flag": True}


def test_a_product_is_rounded_before_it_is_scaled(found):
    """op-plugin's acl_op::baddbmm: BatchMatMul into float16, then mul by alpha; overflowed values are lost."""
    assert found["divided after"] == {"result": [32752.0, 32752.0], "flag": True}
    assert found["divided before"] == {"result": [40000.0, 40000.0], "flag": False}


def test_it_stays_until_it_is_cleared(found):
    assert found["sticky"] == [True, True]


def test_there_is_no_bfloat16(found):
    assert not found["is_bf16_supported"]
    assert found["name"] == "Ascend910A"
    assert "Ascend910A has no bfloat16" in found["bfloat16"]


@pytest.mark.parametrize("what", ["fusion attention", "swiglu"])
def test_kernels_of_later_chips_are_refused(found, what):
    assert "not on the first generation" in found[what]


def test_a_norm_of_two_dtypes_is_refused(found):
    assert "only one dtype" in found["mixed norm"]


def test_on_a_later_chip_overflow_is_infinity(npu):
    large = torch.full((2,), 60000.0, device=npu, dtype=torch.float16)
    assert torch.npu.utils.is_support_inf_nan()
    assert (large + large).tolist() == [float("inf")] * 2
    assert not torch.ops.ascend_simulator.overflowed()
