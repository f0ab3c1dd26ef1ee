"""Stand-ins for torch.cuda in a process without a GPU: one stream, no memory, generators that draw nothing.

Functions on which the host would wait for the device are counted in `waits`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fake_gpu.waits import waits

DEVICES = 8
GIB = 2**30


class Product(NamedTuple):
    """GPU model of the job's devices."""

    name: str
    capability: tuple[int, int]
    memory: int
    processors: int


PRODUCTS = {
    "a100": Product("NVIDIA A100-SXM4-80GB", (8, 0), 80 * GIB, 108),
    "h100": Product("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, 132),
}


class Stream:
    """The one stream, whichever is asked for."""

    cuda_stream = 0
    priority = 0

    def __init__(self, *_args, **_kwargs):
        self.device = torch.device("cuda", 0)

    def wait_stream(self, other): ...

    def wait_event(self, event): ...

    def record_event(self, event=None):
        return event or Event()

    def query(self):
        return True

    def synchronize(self):
        waits.note("Stream.synchronize")

    def __enter__(self):
        return self

    def __exit__(self, *_exception): ...


class Event:
    def __init__(self, *_args, **_kwargs): ...

    def record(self, stream=None): ...

    def wait(self, stream=None): ...

    def query(self):
        return True

    def synchronize(self):
        waits.note("Event.synchronize")

    def elapsed_time(self, other):
        waits.note("Event.elapsed_time")
        return 0.0


class Generator:
    """Has a state of 16 bytes, seed and offset, as CUDA's."""

    def __init__(self):
        with _disable_current_modes():
            self.state = torch.zeros(16, dtype=torch.uint8)

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def manual_seed(self, seed):
        with _disable_current_modes():
            self.state = torch.tensor([seed % 2**63, 0], dtype=torch.int64).view(torch.uint8)
        return self

    def clone_state(self):
        other = Generator()
        other.state = self.state
        return other

    graphsafe_get_state = get_state
    graphsafe_set_state = set_state


_chosen = [PRODUCTS["a100"]]


def choose(name: str) -> Product:
    """Let this process' devices be of another product."""
    _chosen[:] = [PRODUCTS[name]]
    return _chosen[0]


def install() -> None:
    """Put the stand-ins into torch.cuda, before anything binds its names."""
    generators = tuple(Generator() for _ in range(DEVICES))
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_kwargs: call(),
        "init": lambda: None,
        "device_count": lambda: DEVICES,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: _chosen[0].name,
        "get_device_capability": lambda device=None: _chosen[0].capability,
        "get_device_properties": lambda device=None: _properties(_chosen[0]),
        "synchronize": lambda device=None: waits.note("synchronize"),
        "empty_cache": lambda: waits.note("empty_cache"),  # cudaFree waits
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "memory_stats": lambda device=None: {},
        "mem_get_info": lambda device=None: (_chosen[0].memory, _chosen[0].memory),
        "manual_seed": lambda seed: generators[0].manual_seed(int(seed)),
        "manual_seed_all": lambda seed: generators[0].manual_seed(int(seed)),
        "get_rng_state": lambda device="cuda": generators[0].get_state(),
        "set_rng_state": lambda state, device="cuda": generators[0].set_state(state),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "set_stream": lambda stream: None,
        "stream": lambda stream: stream or Stream(),
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
        if hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, function)
    torch.cuda.default_generators = torch.cuda.random.default_generators = generators
    torch.cuda.Stream, torch.cuda.Event = Stream, Event
    torch.cuda.nvtx = SimpleNamespace(range_push=lambda message: None, range_pop=lambda: None)
    torch.cuda.nccl.version = lambda: (2, 29, 3)
    torch.version.cuda = "13.0"
    torch.Tensor.record_stream = lambda self, stream: None
    sys.modules["torch.distributed"].ProcessGroupNCCL = SimpleNamespace(Options=SimpleNamespace)


def _properties(product: Product) -> SimpleNamespace:
    return SimpleNamespace(
        name=product.name,
        major=product.capability[0],
        minor=product.capability[1],
        total_memory=product.memory,
        multi_processor_count=product.processors,
        warp_size=32,
    )
