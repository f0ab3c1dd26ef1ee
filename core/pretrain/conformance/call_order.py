"""Calls a kernel twice before its backward pass, as every model of two layers does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import run_with
from pretrain.conformance.comparison import random
from pretrain.conformance.example_calls import OPERATIONS, as_function, example_call
from pretrain.conformance.fake_tensors import CASES
from pretrain.conformance.footprint import differentiable
from pretrain.conformance.tensor_error import assert_near

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from pretrain.conformance.example_calls import ExampleCall
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request

    Function = Callable[..., Tensor]

TOKENS = 7


class TestCallOrder:
    """Calls of a kernel that disturb each other, through a workspace of the module or of what `build` returned."""

    operations = OPERATIONS

    @run_with(CASES)
    def test_the_call_made_last_goes_backward_first(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Forward A, forward B, backward B, backward A give what A and B give alone; B has other values than A."""
        built = as_function(asked.operation, subject.build(kernel, asked))
        calls = _two_calls(asked, subject.device)
        torch.manual_seed(1)  # with dropout, the second time draws what the first one drew
        alone = [_Pass(built, call).gradients() for call in calls]
        torch.manual_seed(1)
        first, second = [_Pass(built, call) for call in calls]
        for name, mine, expected in (("B", second, alone[1]), ("A", first, alone[0])):
            _assert_same(mine.gradients(), expected, asked, f"call {name} of A and B")

    @run_with(case for case in CASES if case.candidates[0].operation != "cross_entropy")
    def test_a_graph_that_is_kept_goes_backward_twice(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """The second time gives the same gradients. A cross entropy may overwrite what it keeps, the largest tensor."""
        built = as_function(asked.operation, subject.build(kernel, asked))
        only = _Pass(built, _two_calls(asked, subject.device)[0])
        first = only.gradients()
        _assert_same(only.gradients(), first, asked, "the second time")


class _Pass:
    """A forward pass that has its backward pass before it, once or several times."""

    def __init__(self, kernel: Function, call: ExampleCall) -> None:
        self._given = differentiable(call)
        self._output = kernel(**self._given, **call.constants)

    def gradients(self) -> dict[str, Tensor]:
        """Return copies of the output and of the gradients; of a weight with `main_grad` what was added to that."""
        grad = random(*self._output.shape, dtype=self._output.dtype, seed=7).to(self._output.device)
        given = list(self._given.values())
        grads = torch.autograd.grad(self._output, given, grad, retain_graph=True, allow_unused=True)
        found = {"output": self._output, **dict(zip(self._given, grads, strict=True))}
        weight: Any = self._given.get("weight")
        if not getattr(weight, "grad_added_to_main_grad", False):
            return _copies(found)
        found["weight"] = weight.main_grad
        copies = _copies(found)
        weight.main_grad.zero_()
        return copies


def _copies(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in tensors.items() if x is not None}


def _two_calls(asked: Request, device: torch.device) -> list[ExampleCall]:
    first = example_call(asked, TOKENS)
    second = replace(first, inputs={name: 2 * x.flip(0) for name, x in first.inputs.items()})
    return [call.placed(lambda x: x.to(device)) for call in (first, second)]


def _assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], asked: Request, what: str) -> None:
    for name, value in expected.items():
        assert_near(actual[name], value.cpu().double(), asked.dtype, f"{name}, {what}")
