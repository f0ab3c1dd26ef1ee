"""List of the names that pretrain and torch use of a device's torch module (`torch.npu`, `torch.xpu`, a vendor's).

A vendor's library registers the module (`torch._register_device_module`). The section of docs/hooks.md about it is
generated from here, the conformance kit tests every entry, and `pretrain.bridge.megatron.names` stands in for
what may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One name of the module."""

    name: str
    """torch.<device>.<name>."""
    call: str
    """How it is called, "" for a class or a value."""
    purpose: str
    """Who asks for it, and what for."""
    otherwise: str = ""
    """What serves where the module lacks it; "" where nothing can: the module must have it."""

    @property
    def needed(self) -> bool:
        """True if a training fails without it."""
        return not self.otherwise


MEMBERS = (
    Member("current_device", "() -> int", "index of this rank's device"),
    Member("set_device", "(device) -> None", "make a device, or an index, the current one"),
    Member("manual_seed", "(seed) -> None", "seed the device's default generator"),
    Member("manual_seed_all", "(seed) -> None", "the same, of all devices: torch.manual_seed"),
    Member("_is_in_bad_fork", "() -> bool", "torch.manual_seed asks first; False"),
    Member("get_rng_state", "(device) -> Tensor", "the generator's state: uint8, on the host"),
    Member("set_rng_state", "(state, device) -> None", "restore what get_rng_state returned"),
    Member(
        "synchronize",
        "() -> None",
        "wait until the device is idle",
        "torch.accelerator.synchronize, which asks the device's guard",
    ),
    Member(
        "Stream",
        "",
        "class of streams, derived from torch.Stream: ZeRO-3 passes one to record_stream",
        "torch.Stream of the device; where its guard makes none, a device that computes when it is called",
    ),
    Member("Event", "", "class of events", "torch.Event of the device, as for Stream"),
    Member(
        "current_stream",
        "() -> Stream",
        "what the calling thread computes on",
        "torch.accelerator.current_stream, as for Stream",
    ),
    Member(
        "default_stream",
        "() -> Stream",
        "what it computes on if it never chose another",
        "current_stream, when it is first asked for",
    ),
    Member(
        "stream",
        "(stream)",
        "context manager: compute on that stream",
        "the stream, which is a context manager of its own",
    ),
    Member("device", "(device)", "context manager: make a device the current one", "set_device, before and after"),
    Member(
        "default_generators",
        "",
        "a generator for each device",
        "an object whose state is get_rng_state's and set_rng_state's",
    ),
    Member(
        "empty_cache",
        "() -> None",
        "give freed memory back to the device",
        "nothing: no allocator that keeps memory",
    ),
    Member("memory_allocated", "() -> int", "bytes in use: Backend.memory", "not reported"),
    Member("max_memory_allocated", "() -> int", "the most bytes that were in use: Backend.memory", "not reported"),
    Member(
        "reset_peak_memory_stats",
        "() -> None",
        "count the peak from now on: Backend.memory",
        "the peak is that of the whole run",
    ),
    Member("mem_get_info", "() -> (free, total)", "bytes of the device: Backend.memory", "not reported"),
    Member("is_current_stream_capturing", "() -> bool", "whether a graph is captured", "False: none ever is"),
    Member(
        "FloatTensor",
        "",
        "class whose instances are the device's fp32 tensors, and HalfTensor, BFloat16Tensor alike",
        "classes that look at a tensor's device and dtype",
    ),
)
"""In the order in which a vendor would write them: what is needed first."""

NEEDED = tuple(member.name for member in MEMBERS if member.needed)
