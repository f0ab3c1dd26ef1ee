"""Trials of the smallest recipe's kernels on this machine's CPU."""

from __future__ import annotations

import torch

from pretrain.conformance.comparison import oracle
from pretrain.conformance.example_calls import as_function
from pretrain.model.requests import kernel_requests
from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.trials import ShapeLimits, make_trial
from recipe.smallest import SMALLEST

CPU = torch.device("cpu")
AMPLE = ShapeLimits(flops=1e12, memory=1e9)


def request_of(operation, *overrides):
    recipe = make_recipe(SMALLEST, overrides)
    found = {request.operation: request for request in kernel_requests(recipe, "cpu", 257)}
    return found[operation], recipe


def reference(request):
    return as_function(request.operation, oracle(request, request.dtype))


def trial_of(operation, *overrides, limits=AMPLE, **options):
    request, recipe = request_of(operation, *overrides)
    return request, make_trial(request, recipe, limits, **options)


def wrong_in(trial, kernel):
    return [found.name for found in trial.deviations(kernel, CPU) if found.verdict is Verdict.WRONG]
