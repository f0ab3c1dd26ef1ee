"""Every simulated kernel against float64, forward and backward, and against torch_npu's own meta kernels."""

from importlib.metadata import version

import pytest
import torch

from simulator_kit.cases import CASES

TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(case, dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in case.shapes]


def results_and_gradients(function, tensors, constants):
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    result = function(*tensors, *constants)
    result = result[0] if isinstance(result, tuple | list) else result
    weights = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).view(result.shape)
    (result * weights.to(result)).sum().backward()
    return [result.detach().cpu().double(), *(tensor.grad.cpu().double() for tensor in tensors)]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_in_float64(npu, name, dtype):
    case = CASES[name]
    given = inputs(case, dtype)
    expected = results_and_gradients(case.expected, [tensor.double() for tensor in given], case.constants)
    constants = [constant.to(npu) for constant in case.constants]
    found = results_and_gradients(case.call, [tensor.to(npu) for tensor in given], constants)
    tolerance = TOLERANCES[dtype]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("matmul", "linear"))])
def test_shapes_and_dtypes_are_those_of_torch_npu_s_meta_kernels(npu, name):
    case = CASES[name]
    tensors = [*inputs(case, torch.float16), *case.constants]
    try:
        declared = case.call(*(tensor.to("meta") for tensor in tensors))
    except NotImplementedError as error:
        pytest.skip(f"torch_npu {version('torch_npu')}: {str(error)[:80]}")
    found = case.call(*(tensor.to(npu) for tensor in tensors))
    declared, found = ([result] if isinstance(result, torch.Tensor) else result for result in (declared, found))
    describe = [(tuple(result.shape), result.dtype) for result in declared]
    assert [(tuple(result.shape), result.dtype) for result in found] == describe
