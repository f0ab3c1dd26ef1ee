"""Trials find a kernel that is wrong in any of its results, at sizes that are compared whole and in part."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pretrain.conformance.comparison import oracle, random
from pretrain.conformance.example_calls import OPERATIONS
from pretrain.plugins.signatures import SIGNATURES
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import linear_shapes
from pretrain.tools.doctor import kernels, trials
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.trials import (
    Deviation,
    ShapeLimits,
    TooLargeError,
    make_trial,
    optimizer_deviations,
)
from recipe.smallest import SMALLEST
from tools.doctor.tried import AMPLE, CPU, reference, request_of, trial_of, wrong_in

EXPERTS = ("model.num_experts=8", "model.add_bias_linear=false")
ROPE = ("model.position_embedding_type=rope", "model.num_query_groups=2")
DOCUMENTS = "data.reset_attention_mask=true"


def model_of(operation):
    if operation in {"grouped_linear", "moe_permute", "router"}:
        return EXPERTS
    return ROPE if operation == "softmax" else (*ROPE, DOCUMENTS)  # which has no softmax


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is 10 % too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.1


@pytest.fixture(params=[2**23, 300], ids=["whole", "part"])
def elements(request, monkeypatch):
    """Let the oracle compute everything, or a small part."""
    monkeypatch.setattr(trials, "ORACLE_ELEMENTS", request.param)
    return request.param


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_reference_is_right_and_a_part_says_so(elements, operation):
    request, trial = trial_of(operation, *model_of(operation))
    assert wrong_in(trial, reference(request)) == []
    assert ("compared" in trial.sizes) is (elements == 300 and operation != "grouped_linear")  # fewer rows, all of them


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_output_is_found(elements, operation):
    request, trial = trial_of(operation, *model_of(operation))
    built = reference(request)
    assert wrong_in(trial, lambda **given: built(**given) * 1.1)[0] == "output"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_gradient_of_each_input_is_found(elements, operation):
    request, trial = trial_of(operation, *model_of(operation))
    built = reference(replace(request, main_grad_dtype=None) if "linear" in operation else request)
    for name in trial.call.inputs:
        found = wrong_in(trial, lambda name=name, **given: built(**given | {name: Scaled.apply(given[name])}))
        assert found == [f"gradient of {name}"]


def test_what_is_not_finite_outside_of_the_part_is_found(monkeypatch):
    monkeypatch.setattr(trials, "ORACLE_ELEMENTS", 300)
    request, trial = trial_of("norm")
    built, every = reference(request), trial.part.step

    def spoilt(**given):
        outside = torch.arange(given["x"].shape[0])[:, None, None] % every != 0
        return built(**given).masked_fill(outside, torch.nan)

    assert every > 1
    assert "output" in wrong_in(trial, spoilt)


def test_a_weight_gradient_that_is_added_to_main_grad_is_compared_there():
    request, trial = trial_of("linear")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            weight.main_grad += 2 * grad.flatten(0, 1).t() @ x.flatten(0, 1)
            weight.grad_added_to_main_grad = True
            return grad @ weight, torch.empty_like(weight)

    assert trial.call.main_grad_dtype == torch.float32
    assert wrong_in(trial, lambda x, weight, bias: Twice.apply(x, weight) + bias) == ["gradient of weight"]
    assert wrong_in(trial, reference(request)) == []


def test_a_kernel_may_overwrite_the_logits_alone():
    request, trial = trial_of("cross_entropy")
    built = reference(request)
    assert trial.call.inputs["logits"].shape[-1] == request.padded_vocab_size
    assert wrong_in(trial, lambda logits, target: built(logits.mul_(1), target)) == []


def test_a_little_over_the_tolerance_is_inexact_and_far_over_it_wrong():
    verdicts = [Deviation("output", error, 0.01).verdict for error in (0.01, 0.011, 0.04, 0.041, float("inf"))]
    assert verdicts == [Verdict.OK, Verdict.LOOK, Verdict.LOOK, Verdict.WRONG, Verdict.WRONG]
    assert Deviation("output", float("nan"), 0.01).verdict is Verdict.WRONG


def test_random_numbers_repeat_after_a_prime(monkeypatch):
    monkeypatch.setattr("pretrain.conformance.comparison.BLOCK", 7)
    x = random(3, 5, dtype=torch.float32, seed=1)
    assert torch.equal(x.view(-1)[:7], x.view(-1)[7:14])
    assert not torch.equal(x[0], x[1])


STATES = {
    "fp32": (),
    "bf16": ("optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16", "optimizer.adam_beta2=0.95"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_optimizers_form_of_weight_decay_and_its_norm(name, state):
    request, _ = request_of("optimizer", f"optimizer.name={name}", *STATES[state])
    kernels = reference(request)
    right = list(optimizer_deviations(request, kernels, (6, 5), CPU))
    names = ("weight", "bias", "exp_avg", "exp_avg_sq")
    assert [found.name for found in right] == [*(f"{name} in 2 steps" for name in names), "gradient norm"]
    assert {found.verdict for found in right} == {Verdict.OK}

    def other_form(parameters, adam_w_mode, **settings):
        return kernels.adam(parameters, adam_w_mode=not adam_w_mode, **settings)

    other = replace(kernels, adam=other_form)
    assert next(iter(optimizer_deviations(request, other, (6, 5), CPU))).verdict is Verdict.WRONG
    halved = replace(kernels, gradient_norm=lambda tensors: kernels.gradient_norm(tensors) / 2)
    assert list(optimizer_deviations(request, halved, (6, 5), CPU))[-1].verdict is Verdict.WRONG


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("factors", "wrong"),
    [((0, 0), ["exp_avg", "exp_avg_sq"]), ((1, 0.5), ["exp_avg_sq"]), ((1.1, 1), ["exp_avg"])],
    ids=["forgets its state", "halves exp_avg_sq", "stores a larger exp_avg"],
)
def test_an_adam_that_stores_another_state_is_found(factors, wrong, state):
    request, _ = request_of("optimizer", *STATES[state])
    kernels = reference(request)

    class Wrong(kernels.adam):
        def step(self, *given, **named):
            super().step(*given, **named)
            for its in self.state.values():
                its["exp_avg"].mul_(factors[0])
                its["exp_avg_sq"].mul_(factors[1])

    found = optimizer_deviations(request, replace(kernels, adam=Wrong), (6, 5), CPU)
    assert [each.name.split()[0] for each in found if each.verdict is Verdict.WRONG] == wrong


def test_all_shapes_of_the_models_linears_are_tried():
    overrides = ("model.num_query_groups=2", "model.ffn_hidden_size=256", "model.activation=swiglu")
    request, recipe = request_of("linear", *overrides, "model.add_bias_linear=false")
    shapes = linear_shapes(recipe)
    assert shapes == [(64, 512), (256, 64), (64, 128), (64, 64)]
    assert len(linear_shapes(make_recipe(SMALLEST, ("model.ffn_hidden_size=192",)))) == 3  # one is like QKV
    for shape in shapes:
        trial = make_trial(request, recipe, AMPLE, linear=shape)
        assert trial.call.inputs["weight"].shape == shape[::-1]
        assert wrong_in(trial, reference(request)) == []


def test_linears_of_shared_experts_are_tried_and_no_others_where_every_layer_has_experts():
    settings = (*EXPERTS, "model.moe_shared_expert_intermediate_size=24")
    recipe = make_recipe(SMALLEST, (*settings, "model.activation=swiglu"))
    hidden = recipe.model.hidden_size
    assert linear_shapes(recipe)[:2] == [(hidden, 2 * 24), (24, hidden)]
    assert len(linear_shapes(recipe)) == 4
    assert len(linear_shapes(make_recipe(SMALLEST, (*settings, "model.moe_layer_freq=2")))) == 6


def test_linears_other_than_the_largest_are_tried_with_few_tokens():
    request, recipe = request_of("linear", "model.seq_length=1024")
    assert make_trial(request, recipe, AMPLE).call.inputs["x"].shape == (1024, 2, 64)
    assert make_trial(request, recipe, AMPLE, linear=(256, 64)).call.inputs["x"].shape == (64, 2, 256)


def test_sizes_are_cut_to_the_time_and_the_memory_that_there_is():
    request, recipe = request_of("linear")
    cut = make_trial(request, recipe, ShapeLimits(flops=6.0 * 64 * 256 * 20, memory=1e9))
    assert cut.call.inputs["x"].shape == (10, 2, 64)
    assert cut.sizes.startswith("s 10 of 32, b 2")
    with pytest.raises(TooLargeError, match=r"a token would take about 0\.0 GiB"):
        make_trial(request, recipe, ShapeLimits(flops=1e9, memory=100))


def test_a_sequence_that_would_take_too_long_is_not_tried():
    request, recipe = request_of("attention")
    work = 14.0 * 4 * 16 * 32**2
    assert make_trial(request, recipe, ShapeLimits(flops=work / 3, memory=1e9), stores_scores=False).sizes.startswith(
        "s 32, b 1 of 2"
    )
    with pytest.raises(TooLargeError, match="one sequence would take 25 s"):
        make_trial(request, recipe, ShapeLimits(flops=work / 5, memory=1e9), stores_scores=False)


def test_flash_attention_needs_no_room_for_scores():
    request, recipe = request_of("attention", "model.seq_length=2048")
    limits = ShapeLimits(flops=1e15, memory=2**26)
    assert make_trial(request, recipe, limits, stores_scores=False).call.inputs["query"].shape == (2048, 2, 4, 16)
    with pytest.raises(TooLargeError, match=r"one sequence would take about 0\.5 GiB"):
        make_trial(request, recipe, limits)


def test_ranks_of_like_speed_have_the_same_room():
    assert ShapeLimits.of(1.1e12, 10**9, 1) == ShapeLimits.of(1.3e12, 10**9, 1)
    assert ShapeLimits.of(1e12, 10**9, 4).memory == ShapeLimits.of(1e12, 10**9, 1).memory / 4


def test_tokens_are_split_where_sequence_parallelism_splits_them():
    overrides = ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true")
    assert trial_of("norm", *overrides)[1].call.inputs["x"].shape == (16, 2, 64)
    assert trial_of("activation", *overrides)[1].call.inputs["x"].shape == (32, 2, 128)


def test_the_oracle_is_the_reference_in_float64():
    request, _ = request_of("norm", "precision.dtype=bf16")
    x, weight = torch.randn(3, 64).double(), torch.ones(64).double()
    normed = oracle(request)(x, weight, torch.zeros(64).double())
    assert normed.dtype == torch.float64
    torch.testing.assert_close(normed, torch.nn.functional.layer_norm(x, (64,)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operation", SIGNATURES)
def test_a_kernel_is_called_by_position_as_the_model_calls_it(operation):
    request, trial = trial_of(operation, *model_of(operation))
    built, by_name = oracle(request, request.dtype), set()

    def kernel(*given, **named):
        by_name.update(named)
        return built(*given, **named)

    bench = SimpleNamespace(
        recipe=request_of(operation, *model_of(operation))[1], limits=AMPLE, device=CPU, doing=lambda _check: None
    )
    finding = kernels._tried(bench, operation, request, kernel)
    assert finding.verdict is Verdict.OK
    assert not by_name & set(trial.call.inputs)
