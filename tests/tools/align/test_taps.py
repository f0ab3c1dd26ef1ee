"""Taps call a kernel as the training does."""

from types import SimpleNamespace

import pytest
import torch

from pretrain.conformance.comparison import oracle
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.examples import cross_entropy
from pretrain.plugins.requests import NormRequest
from pretrain.tools.align.recording.call_check import CallCheck
from pretrain.tools.align.recording.folder import ModulePlace, Visit
from pretrain.tools.align.recording.taps import Taps


def tapped(kernel, operation):
    taps = Taps(checking=False)
    taps.visits = SimpleNamespace(current=Visit(ModulePlace(1, "m"), micro_batch=0, batch_first=False, again=True))
    taps.sink = SimpleNamespace(tick=lambda: 0, add=lambda *_, **__: None)
    return taps.around(SimpleNamespace(operation=operation, role="", key=operation), kernel)


def test_a_kernel_may_call_its_parameters_what_it_likes():
    with torch.no_grad():
        assert tapped(lambda a, b, c: a * b + c, "linear")(2, 3, 4) == 10
        assert tapped(lambda q, k, v, mask=None, *, training: (q, mask, training), "attention")(
            1, 2, 3, mask=5, training=False
        ) == (1, 5, False)


def test_what_gets_a_gradient_keeps_its_place():
    x, weight = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)
    tapped(lambda a, b: a * b, "linear")(x, weight).backward()
    assert x.grad == 3


REQUEST = NormRequest(
    device_type="cpu", dtype=torch.float16, kind="LayerNorm", hidden_size=8, epsilon=1e-5, weight_dtype=torch.float16
)


def errors(received, made):
    """Return the errors of a norm that is right but for the gradient of x."""
    x = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1)).half().requires_grad_()
    weight, bias = torch.ones(8).half(), torch.zeros(8).half()
    check = CallCheck(REQUEST, {"x": x, "weight": weight, "bias": bias})
    check.output(torch.nn.functional.layer_norm(x.float(), (8,)).half())
    check.output_gradient(torch.full((4, 2, 8), received).half())
    return check.errors({"x": torch.full((4, 2, 8), made).half()})


def test_a_gradient_that_overflows_whatever_the_kernel_is_no_mistake():
    assert set(errors(received=torch.inf, made=torch.nan)) == {"output"}


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_one_that_only_this_kernel_makes_is(number):
    assert errors(received=1.0, made=number)["gradient of x"][0] == torch.inf


def test_a_check_inside_a_backward_pass_has_the_gradient_of_logits_that_a_kernel_may_overwrite():
    request = cross_entropy(torch.bfloat16)
    call = example_call(request, 7)
    logits = call.inputs["logits"].requires_grad_()
    check = CallCheck(request, {"logits": logits, **call.constants})
    output = oracle(request, torch.bfloat16)(logits=logits.clone(), **call.constants)
    received = torch.ones_like(output)
    check.output(output)
    check.output_gradient(received)
    (right,) = torch.autograd.grad(output, logits, received)
    with torch.no_grad():
        error, explained = check.errors({"logits": 1.03 * right})["gradient of logits"]
    assert error > explained
