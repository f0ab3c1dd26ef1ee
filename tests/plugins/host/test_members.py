"""Return values of a backend's members are checked once; a wrong one names the distribution."""

from __future__ import annotations

import pytest
import torch

from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Unavailable
from pretrain.plugins.host import manager
from pretrain.plugins.host.members import (
    availability,
    device_count,
    environment,
    named,
    require_compilation,
    require_device,
    require_dtype,
    require_module,
    require_overlap,
    take_device,
)
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

pytestmark = pytest.mark.usefixtures("reference")


def load(site, *members):
    """Load a backend with members of its own: "name(arguments): expression" or "name = value"."""
    lines = [f"def {member}" if "(" in member else member for member in members]
    lines = [line.replace("): ", "): return ") for line in lines]
    site.backend("fake", "\n".join(["class Own(FakeBackend):", *(f"    {line}" for line in lines), PLUGIN]))
    return manager.load("fake")


PLUGIN = """
@hookimpl
def pretrain_backend():
    return Own()
"""


def test_a_correct_backend_gives_its_device(site):
    site.backend("fake")
    assert take_device(manager.load("fake"), 0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("member", "first", "second"),
    [
        ("device(self, local_rank): 'cpu'", "Own.device(0) returned str: 'cpu'", "a torch.device of type 'cpu'."),
        ("device(self, local_rank): torch.device('meta')", "Own.device(0) returned device: device(type='meta')", ""),
        ("device(self, local_rank): 1 / 0", "Own.device(0) raised ZeroDivisionError: division by zero", "TRACEBACK=1"),
        ("memory(self, *, reset_peak=False): {'allocated': 1}", "Own.memory() returned dict", "a Memory of bytes"),
        ("peak_flops(self, dtype): '1e12'", "Own.peak_flops(torch.float32) returned str: '1e12'", "a number above 0"),
        ("supports(self, dtype): 'bf16'", "Own.supports(torch.float32) returned str: 'bf16'", "True or False"),
        ("supports_reduction(self, dtype): None", "Own.supports_reduction(torch.float32) returned NoneType", "True"),
        ("pinned_memory(self): 1", "Own.pinned_memory() returned int: 1", "True or False"),
        ("point_to_point(self): False", "Own.point_to_point() returned bool", "a PointToPoint"),
        ("overflow(self): True", "Own.overflow() returned bool", "an object with clear() and read(), or None"),
        ("describe(self): 1 / 0", "Own.device_name() raised ZeroDivisionError", "PRETRAIN_TRACEBACK=1"),
        ("describe(self): {'driver': 5}", "Own.describe() returned dict: {'driver': 5}", "strings to strings"),
    ],
)
def test_a_wrong_answer_is_an_error_of_two_lines(site, member, first, second):
    with pytest.raises(BackendError) as error:
        take_device(load(site, member), 0)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"backend 'fake' (pretrain-fake 1.0): {first}")
    assert second in lines[1]


@pytest.mark.parametrize("answer", ["'two'", "True", "-1"])
def test_a_wrong_number_of_devices(site, answer):
    with pytest.raises(BackendError, match=r"Own.device_count\(\) returned .*\nAllowed: a number from 0, or None"):
        device_count(load(site, f"device_count(self): {answer}"))


def test_a_wrong_environment(site):
    with pytest.raises(BackendError, match=r"Own.prepare\(recipe\) returned int: 7\nAllowed: a mapping of strings"):
        environment(load(site, "prepare(self, recipe): 7"), make_recipe(SMALLEST))


def test_a_wrong_answer_about_compilation(site):
    compiled = make_recipe(SMALLEST, ("kernels.compile=layer", "model.hidden_dropout=0", "model.attention_dropout=0"))
    with pytest.raises(BackendError, match=r"Own.compilation\(\) returned bool: True\nAllowed: Available or Unavail"):
        require_compilation(load(site, "compilation(self): True"), compiled)


def test_a_backend_without_names_of_devices_says_so_itself(site):
    with pytest.raises(BackendError, match="knows no devices by name"):
        named(load(site, "more = 1"), "Acme One")


def test_a_device_that_torch_does_not_know(site):
    with pytest.raises(BackendError) as error:
        require_module(load(site, "device_type = 'acme'"))
    first, second = str(error.value).splitlines()
    assert first.startswith("backend 'fake' (pretrain-fake 1.0): torch ")
    assert "knows no device 'acme', which is its Backend.device_type" in first
    assert "in availability()" in second


@pytest.mark.parametrize("given", ["acmecl", "cpu:gloo,cuda:acmecl"])
def test_a_process_group_that_torch_does_not_know(site, given):
    with pytest.raises(BackendError) as error:
        take_device(load(site, f"process_group = '{given}'"), 0)
    first, second = str(error.value).splitlines()
    assert f"has no backend 'acmecl', which its Backend.process_group '{given}' names. Known: gloo, nccl" in first
    assert "register_backend" in second


def test_a_process_group_for_each_device_is_known(site):
    assert take_device(load(site, "process_group = 'cpu:gloo,cuda:nccl'"), 0)


def test_a_misspelt_member_is_an_error_when_the_backend_is_loaded(site):
    with pytest.raises(BackendError) as error:
        load(site, "suports(self, dtype): False")
    first, second = str(error.value).splitlines()
    assert first == (
        "backend 'fake' (pretrain-fake 1.0): Own.suports is not a member of Backend, so that nothing calls it. "
        "Did you mean 'supports'?"
    )
    assert "begins with an underscore" in second


def test_names_of_a_backends_own_are_left_alone(site):
    assert load(site, "driver = '1.2'", "_suports(self): 1", "wires(self): 10")


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
    assert first.startswith(
        "backend 'fake' (pretrain-fake 1.0) does not support kernels.compile: layer: the inductor of"
    )
    assert first.endswith("generates no kernels for 'abacus'")
    assert second == "Set kernels.compile to none."


def test_a_backends_own_reason_and_remedy_for_not_compiling(site):
    site.backend("fake", "FakeBackend.compilation = lambda self: Unavailable('no compiler', 'Install one.')\n")
    with pytest.raises(BackendError, match=r"does not support kernels.compile: layer: no compiler\nInstall one\."):
        require_compilation(manager.load("fake"), make_recipe(SMALLEST, COMPILED))


def test_stages_that_cannot_overlap_are_an_error_where_it_is_asked_for(site):
    site.backend("fake")
    plugins = manager.load("fake")  # by default messages are batched
    stages = "parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}"
    recipe = [stages, "model.num_layers=4"]
    require_overlap(plugins, make_recipe(SMALLEST, recipe))
    with pytest.raises(
        BackendError, match=r"does not support parallel.overlap_p2p_comm: true: .*\nLeave the key out, or"
    ):
        require_overlap(plugins, make_recipe(SMALLEST, [*recipe, "parallel.overlap_p2p_comm=true"]))
