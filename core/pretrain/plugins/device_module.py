"""List of the names that pretrain and torch use of a device's torch module (`torch.npu`, `torch.xpu`, a vendor's).

A vendor's library registers the module (`torch._register_device_module`). The section of docs/hooks.md about it is
generated from here, the conformance kit tests every entry, and `pretrain.bridge.megatron.substitutes` stands in for
what may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One name of the module.

    Attributes:
        name: torch.<device>.<name>.
        call: how it is called, "" for a class or a value.
        purpose: who asks for it, and what for.
        otherwise: what serves where the module lacks it; "" where nothing can: the module must have it.
    """

    name: str
    call: str = ""
    purpose: str
    otherwise: str = ""

    @property
    def needed(self) -> bool:
        """True if a training fails without it."""
        return not self.otherwise


MEMBERS = (
    Member(name="current_device", call="() -> int", purpose="index of this rank's device"),
    Member(name="set_device", call="(device) -> None", purpose="make a device, or an index, the current one"),
    Member(name="manual_seed", call="(seed) -> None", purpose="seed the device's default generator"),
    Member(name="manual_seed_all", call="(seed) -> None", purpose="the same, of all devices: torch.manual_seed"),
    Member(name="_is_in_bad_fork", call="() -> bool", purpose="torch.manual_seed asks first; False"),
    Member(name="get_rng_state", call="(device) -> Tensor", purpose="the generator's state: uint8, on the host"),
    Member(name="set_rng_state", call="(state, device) -> None", purpose="restore what get_rng_state returned"),
    Member(
        name="synchronize",
        call="() -> None",
        purpose="wait until the device is idle",
        otherwise="torch.accelerator.synchronize, which asks the device's guard",
    ),
    Member(
        name="Stream",
        purpose="class of streams, derived from torch.Stream: ZeRO-3 passes one to record_stream",
        otherwise="torch.Stream of the device; where its guard makes none, a device that computes when it is called",
    ),
    Member(name="Event", purpose="class of events", otherwise="torch.Event of the device, as for Stream"),
    Member(
        name="current_stream",
        call="() -> Stream",
        purpose="what the calling thread computes on",
        otherwise="torch.accelerator.current_stream, as for Stream",
    ),
    Member(
        name="default_stream",
        call="() -> Stream",
        purpose="what it computes on if it never chose another",
        otherwise="current_stream, when it is first asked for",
    ),
    Member(
        name="stream",
        call="(stream)",
        purpose="context manager: compute on that stream",
        otherwise="the stream, which is a context manager of its own",
    ),
    Member(
        name="device",
        call="(device)",
        purpose="context manager: make a device the current one",
        otherwise="set_device, before and after",
    ),
    Member(
        name="default_generators",
        purpose="a generator for each device",
        otherwise="an object whose state is get_rng_state's and set_rng_state's",
    ),
    Member(
        name="empty_cache",
        call="() -> None",
        purpose="give freed memory back to the device",
        otherwise="nothing: no allocator that keeps memory",
    ),
    Member(
        name="memory_allocated",
        call="() -> int",
        purpose="bytes in use: Backend.memory",
        otherwise="not reported",
    ),
    Member(
        name="max_memory_allocated",
        call="() -> int",
        purpose="the most bytes that were in use: Backend.memory",
        otherwise="not reported",
    ),
    Member(
        name="reset_peak_memory_stats",
        call="() -> None",
        purpose="count the peak from now on: Backend.memory",
        otherwise="the peak is that of the whole run",
    ),
    Member(
        name="mem_get_info",
        call="() -> (free, total)",
        purpose="bytes of the device: Backend.memory",
        otherwise="not reported",
    ),
    Member(
        name="is_current_stream_capturing",
        call="() -> bool",
        purpose="whether a graph is captured",
        otherwise="False: none ever is",
    ),
    Member(
        name="FloatTensor",
        purpose="class whose instances are the device's fp32 tensors, and HalfTensor, BFloat16Tensor alike",
        otherwise="classes that look at a tensor's device and dtype",
    ),
)
"""In the order in which a vendor would write them: what is needed first."""

NEEDED = tuple(member.name for member in MEMBERS if member.needed)
