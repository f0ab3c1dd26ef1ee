"""Names of torch.cuda in megatron-core, and their meaning on another device."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.bridge.megatron.substitutes import Generators, HostEvent, HostStream, Substitutes

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend


class DeviceNames:
    """Replacement of `torch.cuda` in translated modules: the device's own names, or substitutes."""

    def __init__(self, backend: Backend) -> None:
        """Collect the names; touches no device."""
        self.type = self.device_type = backend.device_type
        self._module = torch.get_device_module(self.type)
        self.is_available = _false  # megatron-core's check for CUDA, never for "the device"
        self.device_count = lambda: backend.device_count() or 1
        self._lazy_call = lambda function, **_kwargs: function()
        self._lazy_init = _nothing
        self.amp = SimpleNamespace(  # decorators of custom autograd functions
            custom_fwd=functools.partial(torch.amp.custom_fwd, device_type=self.type),
            custom_bwd=functools.partial(torch.amp.custom_bwd, device_type=self.type),
        )
        self.compile = as_is  # fused kernels are negotiated; torch.compile's imports take two seconds
        self.nvtx = SimpleNamespace(range_push=_nothing, range_pop=_nothing)  # ranges for NVIDIA's profiler
        self.random = self  # torch.cuda.random.get_rng_state
        self.OutOfMemoryError = torch.OutOfMemoryError  # whatever the device
        self.CUDAGraph = getattr(self._module, "CUDAGraph", object)  # never captured
        if self.type == "cpu":
            self._fill_in_host()
            return
        self._substitutes = Substitutes(backend, self._module)
        if hasattr(self._module, "default_generators"):
            self.default_generators = Generators(lambda: self._module.default_generators[self._module.current_device()])

    @property
    def has_streams(self) -> bool:
        """True if the device is asynchronous; otherwise every call has completed when it returns."""
        return self.type != "cpu" and self._substitutes.has_streams

    def _fill_in_host(self) -> None:
        self.current_device = functools.partial(torch.device, "cpu")  # an index would mean the accelerator's
        self.set_device = _nothing
        self.synchronize = _nothing
        self.empty_cache = _nothing
        self.Stream = HostStream
        self.Event = HostEvent
        self.current_stream = HostStream
        self.default_stream = HostStream
        self.stream = contextlib.nullcontext
        self.device = contextlib.nullcontext
        self.manual_seed = torch.manual_seed
        self.get_rng_state = lambda device=None: torch.get_rng_state()  # noqa: ARG005  torch.cuda's signatures
        self.set_rng_state = lambda state, device=None: torch.set_rng_state(state)  # noqa: ARG005
        self.default_generators = Generators(lambda: torch.default_generator)
        self.is_current_stream_capturing = _false
        self.FloatTensor = torch.FloatTensor
        self.HalfTensor = torch.HalfTensor
        self.BFloat16Tensor = torch.BFloat16Tensor
        self.memory_allocated = self.max_memory_allocated = self.memory_reserved = _zero

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of torch's module of the device (torch.npu, torch.xpu, ...), or its substitute."""
        if name.startswith("__"):
            raise AttributeError(name)  # while an object is copied or unpickled, before it has `_module`
        for source in (self._module, self.__dict__.get("_substitutes")):
            if hasattr(source, name):
                return getattr(source, name)
        msg = f"megatron-core uses torch.cuda.{name}, which neither torch.{self.type} nor the bridge has"
        raise AttributeError(msg)

    def type_name(self, name: str) -> str:
        """Return the result of `tensor.type()` on the device for the CUDA tensor class of that name."""
        return f"torch.{name}" if self.type == "cpu" else f"torch.{self.type}.{name}"

    def move(self, thing: Any, device: Any = None, **kwargs: Any) -> Any:
        """Return the tensor or module on the device: `thing.cuda(...)`."""
        return thing.to(self.current_device() if device is None else device, **kwargs)

    def holds(self, tensor: Any) -> bool:
        """Return whether the tensor is on the device: `tensor.is_cuda`."""
        return bool(tensor.device.type == self.type)


class PlannedNames(DeviceNames):
    """Names for a plan, whose device is a second CPU, so that fake tensors on it differ from those on the host."""

    def __init__(self, backend: Backend) -> None:
        """Collect the names."""
        super().__init__(backend)
        self._device = backend.device(0)
        self.type = str(self._device)  # where megatron-core writes device="cuda"
        self.current_device = functools.partial(backend.device, 0)

    def type_name(self, name: str) -> str:
        """Return what `tensor.type()` gives for a CPU's tensors."""
        return f"torch.{name}"

    def holds(self, tensor: Any) -> bool:
        """Return whether the tensor is on the device, not on the host."""
        return bool(tensor.device == self._device)


def as_is(function: Any = None, **_kwargs: object) -> Any:
    """Return the function, in place of torch.compile, which is also called with options alone."""
    return as_is if function is None else function


def _nothing(*_args: object, **_kwargs: object) -> None: ...


def _false(*_args: object) -> bool:
    return False


def _zero(*_args: object) -> int:
    return 0
