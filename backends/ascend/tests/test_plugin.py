"""Every hook answers for every recipe on chips that are not here, with reasons, and without importing torch_npu."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pretrain.plugins.host.manager import KERNEL_HOOKS
from pretrain.plugins.requests import LinearRequest
from pretrain.recipe import load_recipe
from pretrain_ascend import plugin

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yml"))
LEFT_TO_THE_REFERENCE = {"bias_dropout_add", "router"}
IN_FP8 = {"linear"}
"""Left to the reference too, but for a reason in fp8."""

OF_EXPERTS = {"grouped_linear", "moe_permute"}
OPERATIONS = {hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS} - LEFT_TO_THE_REFERENCE
DEVICES = ("Ascend910B3", "Ascend910_9391", "Ascend910A", "Ascend950DT")
VARIANTS = ("", "train.deterministic_mode=true", "data.reset_attention_mask=true", "precision={dtype: bf16}")

PROGRAM = """
import json, sys

sys.modules["torch_npu"] = None  # its import is an error

from pretrain.model.requests import collectives_request, kernel_requests
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Decline
from pretrain.recipe import load_recipe

recipes, devices, variants = json.loads(sys.argv[1])
plugins, seen = manager.load("ascend"), []
for recipe in recipes:
    for variant in variants:
        loaded = load_recipe(recipe, [variant] if variant else [])
        for device in devices:
            requests = [collectives_request(loaded, "npu", "hccl"), *kernel_requests(loaded, "npu", 50257, device)]
            for request in requests:
                answers = [each.answer for each in ask(plugins, request) if each.plugin.installed.name == "ascend"]
                seen.append([recipe, variant, device, request.operation, [
                    [each.name, each.reason if isinstance(each, Decline) else ""] for each in answers]])
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen():
    """Recipe, variant, device, operation and the answers."""
    asked = [[str(path) for path in RECIPES], DEVICES, VARIANTS]
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    # -I would hide the environment's own .pth files; autoload would import torch_npu before the program can forbid it
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_has_a_hook_and_a_file(operation):
    assert getattr(plugin, f"pretrain_{operation}").pretrain_impl
    assert importlib.util.find_spec(f"pretrain_ascend.{operation}") is not None


@pytest.mark.parametrize("operation", sorted(LEFT_TO_THE_REFERENCE))
def test_operations_left_to_the_reference_have_no_hook(operation):
    """Its file says why."""
    assert not hasattr(plugin, f"pretrain_{operation}")
    assert "the reference's" in import_module(f"pretrain_ascend.{operation}").__doc__


@pytest.mark.parametrize("device", DEVICES)
def test_no_chip_multiplies_in_fp8_and_the_reason_names_those_that_could(device):
    asked = LinearRequest(device_type="npu", device_name=device, dtype=torch.bfloat16)
    assert plugin.pretrain_linear(asked) is None
    declined = plugin.pretrain_linear(replace(asked, quantization="rowwise"))
    assert declined.reason == "quantization rowwise; fp8 needs chip family 950, not tried here"


@pytest.mark.full
def test_every_hook_answers_for_every_recipe_on_every_chip(seen):
    answered = {(recipe, device, operation) for recipe, _, device, operation, answers in seen if answers}
    asked = {(recipe, device, operation) for recipe, _, device, operation, _ in seen}
    assert {operation for *_, operation in asked} >= OPERATIONS - OF_EXPERTS
    assert {row for row in asked - answered if row[-1] in OPERATIONS - IN_FP8} == set()


@pytest.mark.full
def test_every_decline_has_a_reason(seen):
    """A reason says what was asked and what is allowed, after a semicolon."""
    reasons = {reason for *_, answers in seen for _, reason in answers if reason}
    assert reasons
    assert [reason for reason in sorted(reasons) if not re.search(r"\w; \w", reason)] == []


@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES)
def test_on_every_chip_attention_norm_and_activation_have_a_kernel(seen, device):
    usual = [row for row in seen if row[1] == "" and row[2] == device]
    offered = {(row[0], row[3]) for row in usual if any(not reason for _, reason in row[-1])}
    wanted = {(str(path), operation) for path in RECIPES for operation in ("attention", "norm", "collectives")}
    # A 910A multiplies fp32 in fp16 and has no bf16: such a recipe is refused there before its kernels matter.
    lacking = {"fp32": ("attention",), "bf16": ("attention", "norm"), "fp16": ()}
    refused = {(str(path), name) for path in RECIPES for name in lacking[load_recipe(path).precision.dtype]}
    assert wanted - offered == (refused if device == "Ascend910A" else set())
