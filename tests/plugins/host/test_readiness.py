"""The device of a loaded backend: its availability and capabilities."""

from __future__ import annotations

import pytest
import torch

from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Unavailable
from pretrain.plugins.host import manager
from pretrain.plugins.host.members import (
    availability,
    require_compilation,
    require_device,
    require_dtype,
    require_overlap,
)
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

pytestmark = pytest.mark.usefixtures("reference")
COMPILED = ("kernels.compile=layer", "model.hidden_dropout=0", "model.attention_dropout=0")


def test_a_device_that_is_there(site):
    site.backend("fake")
    assert require_device(manager.load("fake")) == Available("two of them")


def test_a_device_that_is_not_there_gives_reason_and_remedy(site):
    site.backend("fake", availability="Unavailable('no driver', 'install the driver')")
    with pytest.raises(
        BackendError, match=r"\(pretrain-fake 1.0\) has no usable device: no driver\ninstall the driver"
    ):
        require_device(manager.load("fake"))


@pytest.mark.parametrize(("expression", "reason"), [("1 / 0", "ZeroDivisionError"), ("True", "returned bool")])
def test_a_backend_that_breaks_the_contract_is_unavailable_and_named(site, expression, reason):
    site.backend("fake", availability=expression)
    answer = availability(manager.load("fake"))
    assert isinstance(answer, Unavailable)
    assert reason in answer.reason
    assert "pretrain-fake 1.0" in answer.remedy


def test_a_dtype_that_the_device_lacks_names_those_it_has(site):
    site.backend("fake")
    plugins = manager.load("fake")
    require_dtype(plugins, torch.bfloat16)
    type(plugins.backend).supports = lambda self, dtype: dtype is not torch.bfloat16
    require_dtype(plugins, torch.float16)
    with pytest.raises(BackendError, match=r"does not support bfloat16.*\nSet precision.dtype to one of: fp32, fp16"):
        require_dtype(plugins, torch.bfloat16)


def test_layers_are_compiled_where_torchs_inductor_knows_the_device(site):
    site.backend("fake")
    plugins = manager.load("fake")
    for device_type in ("cpu", "cuda"):
        type(plugins.backend).device_type = device_type
        require_compilation(plugins, make_recipe(SMALLEST, COMPILED))


def test_layers_that_cannot_be_compiled_are_an_error_of_two_lines(site):
    site.backend("fake")
    plugins = manager.load("fake")
    type(plugins.backend).device_type = "abacus"
    require_compilation(plugins, make_recipe(SMALLEST))
    with pytest.raises(BackendError) as caught:
        require_compilation(plugins, make_recipe(SMALLEST, COMPILED))
    first, second = str(caught.value).splitlines()
    assert first.startswith("backend 'fake' (pretrain-fake 1.0) cannot serve kernels.compile: layer: the inductor of")
    assert first.endswith("generates no kernels for 'abacus'")
    assert second == "Set kernels.compile to none."


def test_a_backends_own_reason_and_remedy_for_not_compiling(site):
    site.backend("fake", "FakeBackend.compilation = lambda self: Unavailable('no compiler', 'Install one.')\n")
    with pytest.raises(BackendError, match=r"cannot serve kernels.compile: layer: no compiler\nInstall one\."):
        require_compilation(manager.load("fake"), make_recipe(SMALLEST, COMPILED))


def test_stages_that_cannot_overlap_are_an_error_where_it_is_asked_for(site):
    site.backend("fake")
    plugins = manager.load("fake")  # by default messages are batched
    stages = "parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}"
    recipe = [stages, "model.num_layers=4"]
    require_overlap(plugins, make_recipe(SMALLEST, recipe))
    with pytest.raises(BackendError, match=r"cannot serve parallel.overlap_p2p_comm: true: .*\nLeave the key out, or"):
        require_overlap(plugins, make_recipe(SMALLEST, [*recipe, "parallel.overlap_p2p_comm=true"]))
