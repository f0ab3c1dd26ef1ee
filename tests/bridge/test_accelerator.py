"""A device that DeepSpeed does not know, driven by the accelerator made from its backend."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from bridge import zero
from pretrain.bridge import deepspeed as bridge
from pretrain.bridge.megatron.names import HostStream
from pretrain.cpu.backend import CpuBackend
from pretrain.plugins.backend import Memory

bridge.install(CpuBackend())
from deepspeed.accelerator import real_accelerator  # noqa: E402
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator  # noqa: E402

from pretrain.bridge.deepspeed.accelerator import DeviceAccelerator, make_accelerator  # noqa: E402


class Loom(CpuBackend):
    """A device under another name, which is the CPU."""

    name = "loom"

    def memory(self, *, reset_peak=False):
        return Memory(allocated=10, peak=20, total=100)

    def supports(self, dtype):
        return dtype != torch.float16


CALLS = {
    "is_synchronized_device": ((), True),
    "use_host_timers": ((), True),
    "resolves_data_dependency": ((), True),
    "handles_memory_backpressure": ((), True),
    "device_name": (("3",), "cpu"),
    "device": ((3,), torch.device("cpu")),
    "set_device": ((0,), None),
    "current_device": ((), 0),
    "current_device_name": ((), "cpu"),
    "device_count": ((), 1),
    "synchronize": ((), None),
    "random": ((), torch.random),
    "default_generator": ((0,), torch.default_generator),
    "stream": ((None,), ...),
    "current_stream": ((), ...),
    "default_stream": ((), ...),
    "empty_cache": ((), None),
    "memory_allocated": ((), 10),
    "max_memory_allocated": ((), 20),
    "reset_max_memory_allocated": ((), None),
    "memory_cached": ((), 10),
    "max_memory_cached": ((), 20),
    "reset_max_memory_cached": ((), None),
    "memory_stats": ((), {"allocated_bytes.all.current": 10, "allocated_bytes.all.peak": 20}),
    "reset_peak_memory_stats": ((), None),
    "memory_reserved": ((), 10),
    "max_memory_reserved": ((), 20),
    "total_memory": ((), 100),
    "available_memory": ((), 90),
    "is_bf16_supported": ((), True),
    "is_fp16_supported": ((), False),
    "supported_dtypes": ((), [torch.float32, torch.bfloat16]),
    "is_available": ((), True),
    "range_push": (("forward",), None),
    "range_pop": ((), None),
    "lazy_call": ((lambda: 3,), 3),
    "communication_backend_name": ((), "gloo"),
    "is_triton_supported": ((), False),
    "create_graph": ((), None),
    "capture_to_graph": ((None,), ...),
    "replay_graph": ((None,), None),
    "on_accelerator": ((torch.ones(1),), True),
    "op_builder_dir": ((), "deepspeed.ops.op_builder.cpu"),
    "create_op_builder": (("ShareMemCommBuilder",), None),
    "get_op_builder": (("FusedAdamBuilder",), ...),
    "build_extension": ((), ...),
    "export_envs": ((), []),
    "visible_devices_envs": ((), []),
    "set_visible_devices_envs": (({}, [0]), None),
    "get_compile_backend": ((), "inductor"),
    "set_compile_backend": (("inductor",), None),
}
"""Method -> arguments and what it returns; ... is anything."""
GENERATOR = {"get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all", "initial_seed"}
STREAMS = {"Stream", "Event"}
TENSORS = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}
MADE_UP_DEVICE = """
import types, torch
from pretrain.plugins.backend import Available, Backend, Memory
from pretrain.bridge import deepspeed as bridge

torch.utils.rename_privateuse1_backend("loom")
module = types.ModuleType("torch.loom")
module.current_device = lambda: 3
module.Stream = type("Stream", (), {})
torch._register_device_module("loom", module)

class Loom(Backend):
    name, device_type, process_group = "loom", "loom", "weft"
    def availability(self): return Available()
    def device(self, local_rank): return torch.device("loom", local_rank)
    def device_count(self): return 8
    def memory(self, *, reset_peak=False): return Memory(1, 2, 3)

deepspeed = bridge.install(Loom())
accelerator = deepspeed.accelerator.get_accelerator()
assert type(accelerator).__name__ == "DeviceAccelerator"
assert accelerator.current_device_name() == "loom:3"
assert accelerator.device_name() == "loom"
assert accelerator.communication_backend_name() == "weft"
assert accelerator.device_count() == 8
assert accelerator.Stream is module.Stream
assert not accelerator.is_synchronized_device()
assert not accelerator.on_accelerator(torch.ones(1))
assert accelerator.create_op_builder("ShareMemCommBuilder") is None
assert accelerator.get_op_builder("FusedAdamBuilder").NAME == "deepspeed_not_implemented"
assert accelerator.get_op_builder("CPUAdamBuilder").NAME == "cpu_adam"
"""


@pytest.fixture
def generic(monkeypatch):
    """DeepSpeed has no accelerator for this device."""
    accelerator = DeviceAccelerator(Loom())
    monkeypatch.setattr(real_accelerator, "ds_accelerator", accelerator)
    return accelerator


def trained(case, backend):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return zero.train(case, backend)
    finally:
        dist.destroy_process_group()


def test_the_devices_that_deepspeed_knows_are_those_of_its_list():
    assert all(map(bridge.has_accelerator, real_accelerator.SUPPORTED_ACCELERATOR_LIST))
    assert not bridge.has_accelerator("loom")


def test_every_abstract_method_is_specified_here():
    specified = CALLS.keys() | GENERATOR | STREAMS | TENSORS.keys()
    assert DeepSpeedAccelerator.__abstractmethods__ == specified


@pytest.mark.parametrize("method", CALLS)
def test_methods(generic, method):
    arguments, expected = CALLS[method]
    returned = getattr(generic, method)(*arguments)
    assert expected is ... or returned == expected


def test_random_numbers_come_from_the_devices_generator(generic):
    state = generic.get_rng_state()
    generic.manual_seed(5)
    first = torch.rand(3)
    generic.manual_seed_all(5)
    assert torch.equal(torch.rand(3), first)
    assert generic.initial_seed() == 5
    generic.set_rng_state(state)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_made_on_the_device(generic, name):
    tensor = getattr(generic, name)([1])
    assert (tensor.dtype, tensor.tolist(), tensor.device.type) == (TENSORS[name], [1], "cpu")


def test_host_operations_alone_can_be_compiled(generic):
    assert generic.get_op_builder("CPUAdamBuilder").NAME == "cpu_adam"
    assert generic.create_op_builder("AsyncIOBuilder").name == "async_io"
    with pytest.raises(ValueError, match="had not been implemented"):
        generic.create_op_builder("FusedAdamBuilder").load()


def test_the_device_says_what_it_supports():
    class Half(Loom):
        def supports_reduction(self, dtype):
            return dtype != torch.float64

    assert DeviceAccelerator(Loom()).is_fp64_supported()
    assert not DeviceAccelerator(Half()).is_fp64_supported()


@pytest.mark.parametrize("name", ["CUDA", "MLU", "NPU", "XPU"])
def test_deepspeeds_own_accelerators_ask_the_backend_too(name):
    module = importlib.import_module(f"deepspeed.accelerator.{name.lower()}_accelerator")
    own = getattr(module, f"{name}_Accelerator")

    class Chip(Loom):
        process_group = "weft"

        def device_count(self):
            return 8

    accelerator = make_accelerator(Chip(), own)
    assert isinstance(accelerator, own)
    assert accelerator.device_name() == name.lower()
    assert (accelerator.communication_backend_name(), accelerator.device_count()) == ("weft", 8)
    assert accelerator.supported_dtypes() == [torch.float32, torch.bfloat16]
    assert accelerator.create_op_builder("ShareMemCommBuilder") is None
    assert accelerator.get_op_builder("FusedAdamBuilder").NAME == "fused_adam"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_unknown_device_trains(monkeypatch, stage):
    expected = trained(zero.Case(stage, "bf16"), CpuBackend())
    monkeypatch.setattr(real_accelerator, "ds_accelerator", DeviceAccelerator(Loom()))
    assert trained(zero.Case(stage, "bf16"), Loom()) == expected


class Asynchronous(DeviceAccelerator):
    """With streams that must be waited for: DeepSpeed takes its code path of a real device."""

    def is_synchronized_device(self):
        return False

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_device_with_streams_trains(monkeypatch, stage):
    expected = trained(zero.Case(stage, "bf16"), CpuBackend())
    waited = []
    monkeypatch.setattr(real_accelerator, "ds_accelerator", Asynchronous(Loom()))
    monkeypatch.setattr(HostStream, "wait_stream", lambda self, stream: waited.append(stream))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)  # torch has it for real streams
    assert trained(zero.Case(stage, "bf16", {"overlap_comm": True}), Loom()) == expected
    assert waited


@pytest.mark.full
def test_a_device_of_another_package_is_taken_at_its_word():
    subprocess.run([sys.executable, "-W", "ignore", "-c", MADE_UP_DEVICE], check=True)
