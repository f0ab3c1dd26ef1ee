"""Every hook answers for every recipe on devices that are not here, with reasons, and imports no library for that."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from pretrain.plugins.host.manager import KERNEL_HOOKS
from pretrain.recipe import load_recipe
from pretrain_cuda import plugin

pytestmark = pytest.mark.xdist_group("answers")  # each worker would ask again

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yml"))
LEFT_TO_THE_REFERENCE = {"moe_permute", "router"}
OPERATIONS = [hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS]
OF_EXPERTS = {"grouped_linear", *LEFT_TO_THE_REFERENCE}
DEVICES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB")
VARIANTS = ("", "train.deterministic_mode=true", "data.reset_attention_mask=true", "precision={dtype: bf16}")

LIBRARIES = {
    "amp_C": [],
    "apex": ["optimizers", "normalization.fused_layer_norm", "contrib.layer_norm.layer_norm"],
    "cutlass": [],
    "fast_layer_norm": [],
    "flash_attn": ["flash_attn_interface", "cute.interface"],
    "flash_attn_2_cuda": [],
    "flash_attn_3": ["_C"],
    "flash_attn_interface": [],
    "fused_layer_norm_cuda": [],
    "fused_rotary_positional_embedding": [],
    "fused_weight_gradient_mlp_cuda": [],
    "generic_scaled_masked_softmax_cuda": [],
    "liger_kernel": ["ops"],
    "scaled_masked_softmax_cuda": [],
    "scaled_softmax_cuda": [],
    "scaled_upper_triang_masked_softmax_cuda": [],
    "transformer_engine": ["pytorch"],
    "triton": [],
}
"""Top-level modules that no answer may import, and submodules that are looked for."""

PROGRAM = """
import json, sys
from importlib.machinery import PathFinder

imported = []

class Loader:
    def create_module(self, spec):
        imported.append(spec.name)
        raise RuntimeError(f"{spec.name} was imported")
    def exec_module(self, module):
        pass

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in LIBRARIES:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = Loader()
        return spec

LIBRARIES, recipes, devices, variants = json.loads(sys.argv[1])
sys.meta_path.insert(0, Guard())

from pretrain.errors import RecipeError
from pretrain.model.requests import collectives_request, kernel_requests
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Decline, Offer
from pretrain.recipe import load_recipe

plugins, seen, lacking = manager.load("cuda"), [], set()
for recipe in recipes:
    for variant in variants:
        loaded = load_recipe(recipe, [variant] if variant else [])
        for device in devices:
            requests = [collectives_request(loaded, "cuda", "nccl"), *kernel_requests(loaded, "cuda", 50257, device)]
            for request in requests:
                answers = [each.answer for each in ask(plugins, request) if each.plugin.installed.name == "cuda"]
                for each in answers:
                    if isinstance(each, Offer) and each.fake is not None:
                        each.fake({})
                    elif isinstance(each, Offer) and request.operation != "collectives":
                        lacking.add(f"{request.operation} {each.name}")
                seen.append([recipe, variant, device, request.operation, [
                    [each.name, each.reason if isinstance(each, Decline) else ""] for each in answers]])
print(json.dumps([imported, seen, sorted(lacking)]))
"""


def ask_all(folder=None):
    """Return which libraries were imported, the answers, and the offers without a stand-in.

    Modules in `folder` are installed too.
    """
    asked = [list(LIBRARIES), [str(path) for path in RECIPES], DEVICES, VARIANTS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder or "")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def here():
    """With the libraries of this machine."""
    return ask_all()


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    """With every library."""
    folder = tmp_path_factory.mktemp("libraries")
    for package, submodules in LIBRARIES.items():
        for name in ["", *submodules]:
            path = folder.joinpath(package, *name.split("."))
            path.mkdir(parents=True, exist_ok=True)
    for path in list(folder.rglob("*/")):
        (path / "__init__.py").touch()
    return ask_all(folder)


WORLDS = [pytest.param("here", marks=pytest.mark.full), "everywhere"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_a_hook_and_a_file(operation):
    assert hasattr(plugin, f"pretrain_{operation}") is (operation not in LEFT_TO_THE_REFERENCE)
    assert importlib.util.find_spec(f"pretrain_cuda.{operation}") is not None


@pytest.mark.parametrize("world", WORLDS)
def test_answers_import_no_library(world, request):
    """Nor does the making of a stand-in."""
    imported, _, _ = request.getfixturevalue(world)
    assert imported == []


@pytest.mark.parametrize("world", WORLDS)
def test_every_kernel_has_a_stand_in(world, request):
    _, _, lacking = request.getfixturevalue(world)
    assert lacking == []


@pytest.mark.parametrize("world", WORLDS)
def test_every_hook_answers_for_every_recipe_on_every_device(world, request):
    _, seen, _ = request.getfixturevalue(world)
    asked = {(Path(recipe).stem, device, operation) for recipe, _, device, operation, _ in seen}
    usual = set(product((path.stem for path in RECIPES), DEVICES, set(OPERATIONS) - {"rotary"} - OF_EXPERTS))
    apart = [path.stem for path in RECIPES if load_recipe(path).data.reset_attention_mask]
    usual -= set(product(apart, DEVICES, ("softmax",)))  # of documents none is asked for
    assert usual < asked
    rotates = [path.stem for path in RECIPES if load_recipe(path).model.position_embedding_type == "rope"]
    assert {row for row in asked - usual if row[-1] not in OF_EXPERTS} == set(product(rotates, DEVICES, ("rotary",)))
    assert [row for row in seen if not row[-1] and row[3] not in LEFT_TO_THE_REFERENCE] == []


@pytest.mark.parametrize("world", WORLDS)
def test_every_decline_has_a_reason(world, request):
    """A reason says what was asked and what is allowed, after a semicolon; or what is missing and how to get it."""
    _, seen, _ = request.getfixturevalue(world)
    reasons = {reason for *_, answers in seen for _, reason in answers if reason}
    assert reasons
    assert [reason for reason in sorted(reasons) if not re.search(r"\w; \w|is not installed: \w", reason)] == []


@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES[:2])
def test_without_a_library_more_only_linear_and_experts_are_left_to_the_reference(here, device):
    _, seen, _ = here
    usual = [row for row in seen if row[1] in ("", VARIANTS[-1]) and row[2] == device]
    declined = {row[3] for row in usual if not any(reason == "" for _, reason in row[-1])}
    assert declined <= {"linear", "grouped_linear", "moe_permute", "router"}
