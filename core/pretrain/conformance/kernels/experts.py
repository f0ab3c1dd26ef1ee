"""Experts: their linears, the sorting of tokens by expert, and the choice of each token's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import NoSynchronization, assert_agrees, assert_repeats, oracle, random
from pretrain.conformance.example_calls import Sizes, as_function, example_call, grouped_call, uneven_counts
from pretrain.conformance.examples import DTYPES, grouped_linear, moe_permute, router
from pretrain.conformance.tensor_error import assert_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import GroupedLinearRequest, MoePermuteRequest, Request, RouterRequest

SHAPES: tuple[dict[str, Any], ...] = (
    {"experts": 5, "hidden": 48, "ffn": 32, "is_gated": True},
    {"experts": 8, "hidden": 128, "ffn": 256},
    {"experts": 1, "hidden": 64, "ffn": 64},
    {"experts": 3, "hidden": 33, "ffn": 21, "is_gated": True},
)
"""Widths that are multiples of 16, of 128, and odd ones."""


class TestGroupedLinear:
    """A `GroupedLinearFn`; it may wait for the device to read the counts."""

    operations = ("grouped_linear",)

    @run_with(grouped_linear(dtype, **shape) for shape in SHAPES for dtype in DTYPES)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: GroupedLinearRequest) -> None:
        """Both linears, forward and backward, with experts that have no row, of rows contiguous and not."""
        for counts in (uneven_counts(35, asked.experts), [0] * (asked.experts - 1) + [1], [0] * asked.experts):
            for is_second in (False, True):
                call, kernels = grouped_call(asked, counts, is_second=is_second), _pair(subject, kernel, asked)
                options: dict[str, Any] = {"constants": call.constants, "is_watched": False}
                assert_agrees(*kernels, call.inputs, subject.device, is_strided=is_second, **options)

    @run_with(
        grouped_linear(dtype, main_grad_dtype=main)
        for dtype in DTYPES
        for main in dict.fromkeys((torch.float32, dtype))
    )
    def test_adds_to_main_grad(self, subject: Subject, kernel: Kernel, asked: GroupedLinearRequest) -> None:
        """Two micro-batches add up in `main_grad`, once each, in whichever way `LinearRequest` allows."""
        built = subject.build(kernel, asked)
        call = grouped_call(asked, uneven_counts(35, asked.experts)).placed(lambda x: x.to(subject.device))
        weight: Any = torch.nn.Parameter(call.inputs["weight"])
        weight.main_grad = torch.ones_like(weight, dtype=asked.main_grad_dtype)
        for _ in range(2):
            weight.grad_added_to_main_grad = False
            built(call.inputs["x"].clone().requires_grad_(), weight, call.constants["counts"]).sum().backward()
            if weight.grad is not None and not weight.grad_added_to_main_grad:
                weight.main_grad.add_(weight.grad)
            weight.grad = None
        parts = torch.split(call.inputs["x"].cpu().double(), call.constants["counts"].tolist())
        rows = torch.stack([part.sum(0) for part in parts])
        expected = 1 + 2 * rows.unsqueeze(1).expand(weight.shape)
        assert_near(weight.main_grad, expected, asked.dtype, "main_grad after two micro-batches")

    @run_with(
        Case(tuple(grouped_linear(dtype, deterministic=True, **shape) for shape in SHAPES[:2])) for dtype in DTYPES
    )
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: GroupedLinearRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        call = grouped_call(asked, uneven_counts(99, asked.experts))
        options: dict[str, Any] = {"constants": call.constants, "is_watched": False}
        assert_repeats(*_pair(subject, kernel, asked), call.inputs, subject.device, **options)


MIXTURES: tuple[dict[str, Any], ...] = (
    {"experts": 8, "topk": 3, "hidden": 48},
    {"experts": 64, "topk": 8, "hidden": 128},
    {"experts": 5, "topk": 1, "hidden": 33},
    {"experts": 2, "topk": 2, "hidden": 64},
)


class TestMoePermute:
    """`MoePermutation`."""

    operations = ("moe_permute",)

    @run_with(moe_permute(dtype, **mixture) for mixture in MIXTURES for dtype in DTYPES)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: MoePermuteRequest) -> None:
        """There, times the weights, and back, forward and backward: many tokens and one, contiguous and not."""
        kernels = _pair(subject, kernel, asked)
        for tokens in (33, 1):
            call = example_call(asked, Sizes(tokens=tokens, batch=1))
            assert_agrees(*kernels, call.inputs, subject.device, constants=call.constants, is_strided=tokens > 1)
        call.constants["routing_map"] = torch.arange(asked.experts).lt(asked.topk).expand(17, -1)
        inputs = example_call(asked, Sizes(tokens=17, batch=1)).inputs
        assert_agrees(*kernels, inputs, subject.device, constants=call.constants)  # all to the same experts

    @run_with(moe_permute(dtype, **mixture) for mixture in MIXTURES for dtype in DTYPES)
    def test_sorts_by_expert_and_token(self, subject: Subject, kernel: Kernel, asked: MoePermuteRequest) -> None:
        """The rows and their weights, bit for bit."""
        call = example_call(asked, Sizes(tokens=33, batch=1))
        placed = call.placed(lambda x: x.to(subject.device))
        tokens, probs, chosen = placed.inputs["tokens"], placed.inputs["probs"], placed.constants["routing_map"]
        with NoSynchronization():
            rows, weights, _ = subject.build(kernel, asked).permute(tokens, chosen, probs)
        experts, numbers = call.constants["routing_map"].t().nonzero(as_tuple=True)
        assert torch.equal(rows.cpu(), call.inputs["tokens"][numbers]), "the rows are not sorted by expert, then token"
        assert weights.dtype == torch.float32, f"the weights are {weights.dtype}, expected torch.float32"
        assert torch.equal(weights.cpu(), call.inputs["probs"][numbers, experts]), "weights of other rows"

    @run_with(
        Case(tuple(moe_permute(dtype, deterministic=True, **mixture) for mixture in MIXTURES[:2])) for dtype in DTYPES
    )
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: MoePermuteRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        call = example_call(asked, Sizes(tokens=99, batch=1))
        assert_repeats(*_pair(subject, kernel, asked), call.inputs, subject.device, constants=call.constants)


ROUTERS = (
    router("softmax"),
    router("softmax", experts=128, topk=8, scaling_factor=2.0),
    router("softmax", pre_softmax=True),
    router("softmax", pre_softmax=True, topk=1),
    router("softmax", num_groups=4, group_topk=2),
    router("sigmoid"),
    router("sigmoid", topk=1, scaling_factor=2.5),
    router("sigmoid", has_bias=True),
    router("sigmoid", num_groups=2, group_topk=1, has_bias=True, scaling_factor=2.5),
    router("sigmoid", experts=6, num_groups=6, group_topk=4, has_bias=True),
    router("sigmoid", experts=256, topk=8, num_groups=8, group_topk=4, has_bias=True, scaling_factor=2.5),
)
"""Mixtral's, Qwen3-MoE's and DeepSeek-V3's ways among them."""


class TestRouter:
    """A `RouterFn`."""

    operations = ("router",)

    @run_with(ROUTERS)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: RouterRequest) -> None:
        """Choice, weights and gradient of the logits; a bias chooses, and does not weigh."""
        kernels = _pair(subject, kernel, asked)
        for tokens in (65, 1):
            call = example_call(asked, Sizes(tokens=tokens, batch=1))
            assert_agrees(*kernels, call.inputs, subject.device, constants=call.constants, is_strided=tokens > 1)
            self._choose(subject, kernel, asked, call.inputs["logits"], call.constants["bias"])

    @run_with(ROUTERS)
    def test_takes_the_lower_of_equal_experts(self, subject: Subject, kernel: Kernel, asked: RouterRequest) -> None:
        """Experts, and groups, whose scores are equal."""
        logits = random(65, asked.experts, dtype=torch.float32).abs().round()
        bias = torch.zeros(asked.experts) if asked.has_bias else None
        self._choose(subject, kernel, asked, logits, bias)
        self._choose(subject, kernel, asked, torch.zeros_like(logits), bias)

    @run_with(ROUTERS)
    def test_always_chooses_as_many(self, subject: Subject, kernel: Kernel, asked: RouterRequest) -> None:
        """Logits of a training that has diverged: the shapes of what comes after depend on it."""
        logits = random(65, asked.experts, dtype=torch.float32)
        for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
            logits[row], logits[row + 3, 1::2] = value, value
        bias = torch.zeros(asked.experts, device=subject.device) if asked.has_bias else None
        _, chosen = subject.build(kernel, asked)(logits.to(subject.device), bias)
        assert chosen.sum(-1).tolist() == [asked.topk] * 65

    @run_with([Case(tuple(router(score, deterministic=True) for score in ("softmax", "sigmoid")))])
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: RouterRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        call = example_call(asked, 33)
        assert_repeats(*_pair(subject, kernel, asked), call.inputs, subject.device, constants=call.constants)

    def _choose(
        self, subject: Subject, kernel: Kernel, asked: RouterRequest, logits: Tensor, bias: Tensor | None
    ) -> None:
        """Compare the choice with that of float64."""
        placed = None if bias is None else bias.to(subject.device)
        with NoSynchronization():
            weights, chosen = subject.build(kernel, asked)(logits.to(subject.device), placed)
        _, expected = oracle(asked)(logits.double(), None if bias is None else bias.double())
        assert chosen.dtype == torch.bool, f"the choice is {chosen.dtype}, expected torch.bool"
        assert torch.equal(chosen.cpu(), expected), (
            f"{int((chosen.cpu() != expected).any(-1).sum())} tokens choose others"
        )
        assert not weights[~chosen].any(), "experts that are not chosen have weights"


def _pair(subject: Subject, kernel: Kernel, asked: Request) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return the kernel and its oracle as functions of one result."""
    return as_function(asked.operation, subject.build(kernel, asked)), as_function(asked.operation, oracle(asked))
