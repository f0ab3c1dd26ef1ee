"""Trials of the smallest recipe's kernels on this machine's CPU."""

from __future__ import annotations

import torch

from pretrain.model.requests import kernel_requests
from pretrain.plugins.host.discovery import REFERENCE
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.offer import Offer
from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.kernels import scores
from pretrain.tools.doctor.kernels.all_kernels import MAKERS
from pretrain.tools.doctor.kernels.room import Room
from pretrain.tools.doctor.kernels.trial import deviations
from recipe.smallest import SMALLEST

CPU = torch.device("cpu")
AMPLE = Room(flops=1e12, memory=1e9)


def request_of(operation, *overrides):
    recipe = make_recipe(SMALLEST, overrides)
    found = {request.operation: request for request in kernel_requests(recipe, "cpu", 257)}
    return found[operation], recipe


def reference(request):
    answer = getattr(load_plugin(REFERENCE).hooks, f"pretrain_{request.operation}")(request)
    answers = answer if isinstance(answer, list) else [answer]
    return next(each for each in answers if isinstance(each, Offer)).build({})


def trial_of(operation, *overrides, room=AMPLE):
    request, recipe = request_of(operation, *overrides)
    if operation == "attention":
        return request, scores.attention(request, recipe, room, kind="softmax")
    return request, MAKERS[operation](request, recipe, room)


def wrong_in(trial, kernel):
    return [found.name for found in deviations(trial, kernel, CPU) if found.verdict is Verdict.WRONG]
