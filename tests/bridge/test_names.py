"""The names of `torch.cuda` on the CPU, and on a device that torch knows only through its own module."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pretrain.bridge.megatron.names import DeviceNames
from pretrain.cpu.backend import CpuBackend

MADE_UP_DEVICE = """
import types, torch
from pretrain.bridge.megatron.names import DeviceNames
from pretrain.plugins.backend import Available, Backend

torch.utils.rename_privateuse1_backend("loom")
module = types.ModuleType("torch.loom")
module.current_device = lambda: 3
module.default_generators = ["0", "1", "2", "generator of device 3"]
module.Stream = type("Stream", (), {})
module.synchronize = lambda: "waited"
torch._register_device_module("loom", module)

class Loom(Backend):
    name, device_type, process_group = "loom", "loom", "gloo"
    def availability(self): return Available()
    def device(self, local_rank): return torch.device("loom", local_rank)
    def device_count(self): return 8

class Thing:
    def to(self, device, **options): return device, options

names = DeviceNames(Loom())
assert names.type == "loom"
assert names.synchronize() == "waited"
assert names.Stream is module.Stream
assert names.device_count() == 8
assert names.default_generators[torch.device("loom")] == "generator of device 3"
assert names.type_name("HalfTensor") == "torch.loom.HalfTensor"
assert names.move(Thing()) == (3, {})
assert names.move(Thing(), 1, non_blocking=True) == (1, {"non_blocking": True})
assert not names.holds(torch.ones(1))
assert not names.is_available()
assert names.compile(len) is len
try:
    names.teleport
except AttributeError as error:
    assert str(error) == "megatron-core uses torch.cuda.teleport, which neither torch.loom nor the bridge has"
else:
    raise SystemExit("no error")
"""


@pytest.fixture
def names():
    return DeviceNames(CpuBackend())


@pytest.mark.full
def test_a_device_of_which_torch_has_only_a_module():
    subprocess.run([sys.executable, "-c", MADE_UP_DEVICE], check=True)


def test_cuda_is_never_available(names):
    assert not names.is_available()


def test_the_cpu_is_one_device(names):
    assert names.device_count() == 1
    assert names.current_device() == torch.device("cpu")
    assert names.default_generators[0] is torch.default_generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_are_called_as_tensors_call_them(names, dtype):
    name = torch.empty(0, dtype=dtype).type().removeprefix("torch.")
    assert names.type_name(name) == torch.empty(0, dtype=dtype).type()
    assert isinstance(torch.empty(0, dtype=dtype), getattr(names, name))


def test_tensors_are_on_the_device_and_stay_there(names):
    tensor = torch.ones(2)
    assert names.holds(tensor)
    assert names.move(tensor) is tensor


def test_the_generator_is_saved_and_restored(names):
    names.manual_seed(5)
    state = names.get_rng_state()
    first = torch.rand(3)
    names.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    assert torch.equal(names.random.get_rng_state(), torch.get_rng_state())


def test_streams_and_events_are_contexts_without_effect(names):
    stream = names.Stream()
    with names.stream(stream), stream:
        event = stream.record_event()
    stream.wait_event(event)
    stream.wait_stream(names.current_stream())
    assert event.query()


def test_lazy_calls_run_at_once(names):
    called = []
    names._lazy_call(lambda: called.append(1), seed=True)
    assert called == [1]


def test_custom_functions_keep_their_gradient(names):
    class Double(torch.autograd.Function):
        @staticmethod
        @names.amp.custom_fwd
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @names.amp.custom_bwd
        def backward(ctx, gradient):
            return 2 * gradient

    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_compile_gives_the_function_back_in_every_form(names):
    assert names.compile(len) is len
    assert names.compile(mode="max-autotune")(len) is len


def test_the_error_of_an_unknown_name_says_that_megatron_core_uses_it(names):
    with pytest.raises(AttributeError, match=r"torch.cuda.teleport, which neither torch.cpu nor the bridge has"):
        _ = names.teleport
