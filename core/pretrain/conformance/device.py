"""Device module of torch, and pinned memory."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.plugins.device_module import MEMBERS

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Subject
    from pretrain.plugins.backend import Memory
    from pretrain.plugins.device_module import Member


class TestDeviceModule:
    """`torch.<device>` has the members of docs/hooks.md, with the behaviour of torch.cuda's."""

    tier = "device"

    @staticmethod
    def skip_reason(subject: Subject) -> str:
        """Return the reason that no test of the class fits the backend, or ""."""
        return "torch needs no module of the CPU" if subject.plugins.backend.device_type == "cpu" else ""

    @pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
    def test_has(self, subject: Subject, member: Member) -> None:
        """Needed members are present; an absent one has a substitute."""
        module = _module(subject)
        if hasattr(module, member.name):
            assert not member.call or callable(getattr(module, member.name)), f"{member.name} cannot be called"
            return
        where = f"torch.{subject.plugins.backend.device_type}.{member.name}{member.call}"
        assert not member.needed, f"{where} is missing: {member.purpose}"
        pytest.skip(f"{where} is missing; instead: {member.otherwise}")

    def test_the_device_of_the_backend_is_the_current_one(self, subject: Subject) -> None:
        """A device without an index is the one that `Backend.device` returned; setting it again changes nothing."""
        module = _module(subject)
        device = subject.device
        assert module.current_device() == (device.index or 0)
        assert torch.empty(1, device=device.type).device == torch.empty(1, device=device).device
        module.set_device(device)
        module.set_device(module.current_device())
        assert module.current_device() == (device.index or 0)

    def test_a_restored_state_repeats_what_is_drawn(self, subject: Subject) -> None:
        """The state is a byte tensor on the host and holds all of the generator."""
        module, device = _module(subject), subject.device
        state = module.get_rng_state(device)
        assert state.dtype == torch.uint8, f"the state's dtype is {state.dtype}"
        assert state.device.type == "cpu", f"the state is on {state.device}; checkpoints need it on the host"
        first, second = (torch.rand(100, device=device).cpu() for _ in range(2))
        assert not torch.equal(first, second), "two draws in a row are equal"
        module.set_rng_state(state, device)
        assert torch.equal(torch.rand(100, device=device).cpu(), first), "a restored state draws other numbers"

    def test_a_seed_repeats_what_is_drawn(self, subject: Subject) -> None:
        """`manual_seed` of the module and of torch seed the device."""
        module, device = _module(subject), subject.device
        for seed in (module.manual_seed, module.manual_seed_all, torch.manual_seed):
            draws = []
            for value in (1, 1, 2):
                seed(value)
                draws.append(torch.rand(100, device=device).cpu())
            assert torch.equal(draws[0], draws[1]), "the same seed draws other numbers"
            assert not torch.equal(draws[0], draws[2]), "another seed draws the same numbers"

    def test_a_default_generator_is_the_one_that_is_drawn_from(self, subject: Subject) -> None:
        """`default_generators[index]` has the state that `get_rng_state` returns."""
        module, device = _module(subject), subject.device
        if not hasattr(module, "default_generators"):
            pytest.skip(f"torch.{device.type}.default_generators is missing; get_rng_state is used instead")
        torch.rand(100, device=device)
        generator = module.default_generators[module.current_device()]
        assert torch.equal(generator.get_state(), module.get_rng_state(device))

    def test_one_stream_waits_for_another(self, subject: Subject) -> None:
        """A second stream that waited for the first one computes with its result."""
        module, device = _module(subject), subject.device
        if not hasattr(module, "Stream"):
            pytest.skip(f"torch.{device.type}.Stream is missing; torch.Stream is used, or the device has no streams")
        first, second = module.current_stream(), module.Stream()
        x = torch.ones(2**20, device=device)
        for _ in range(20):
            x = x + 1
        second.wait_stream(first)
        with module.stream(second):
            doubled = 2 * x
            doubled.record_stream(first)
        event = second.record_event()
        first.wait_event(event)
        assert torch.equal((doubled + 0).cpu(), torch.full((2**20,), 42.0))
        assert isinstance(second, torch.Stream), f"{type(second)} is no torch.Stream: record_stream rejects it"
        second.synchronize()
        assert event.query()

    def test_copies_as_a_training_does(self, subject: Subject) -> None:
        """Batches are freed once they are given to the device; a checkpoint's copy waits where memory is not pinned."""
        device, expected = subject.device, torch.arange(1000)
        batch = expected.clone()
        placed = batch.to(device, non_blocking=True)
        del batch
        _ = [torch.zeros_like(expected) for _ in range(10)]  # takes the memory that was freed
        copy = (placed + 0).to("cpu", non_blocking=subject.plugins.backend.pinned_memory())
        getattr(_module(subject), "synchronize", torch.accelerator.synchronize)()
        assert torch.equal(copy, expected), "a copy to the device and back changed the values"

    def test_a_saved_tensor_is_loaded_on_the_host(self, subject: Subject) -> None:
        """`torch.save` of views that share memory on the device; `torch.load` as a checkpoint is read."""
        whole = torch.arange(12, dtype=torch.float32, device=subject.device).view(3, 4)
        file = io.BytesIO()
        torch.save({"whole": whole, "column": whole[:, 1]}, file)
        file.seek(0)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
        assert torch.equal(loaded["whole"], whole.cpu())
        assert loaded["column"].tolist() == [1, 5, 9]

    def test_pinned_memory(self, subject: Subject) -> None:
        """Batches are pinned where `Backend.pinned_memory` says so, and are copied from there."""
        device = subject.device
        if not subject.plugins.backend.pinned_memory():
            pytest.skip(f"{subject.plugins.label} uses no pinned memory")
        batch = torch.arange(1000).pin_memory()
        assert batch.is_pinned()
        assert torch.equal(batch.to(device, non_blocking=True).cpu(), torch.arange(1000))


def _module(subject: Subject) -> Any:
    return torch.get_device_module(subject.device.type)


MORE = 64 * 2**20


class TestMemory:
    """`Backend.memory`."""

    tier = "device"

    def test_is_consistent(self, subject: Subject) -> None:
        """Memory in use is at most the peak, and the peak is at most the total."""
        memory = subject.plugins.backend.memory()
        known = [value for value in (memory.allocated, memory.peak, memory.total) if value is not None]
        if not known:
            pytest.skip("the device reports no memory")
        assert known == sorted(known), f"allocated <= peak <= total does not hold: {memory}"
        assert min(known) >= 0

    def test_reports_allocations(self, subject: Subject) -> None:
        """Memory in use and peak include large tensors; the peak stays when they are freed."""
        backend = subject.plugins.backend
        before = during = _reported(backend.memory(reset_peak=True))
        tensors: list[Tensor] = []
        # The first ones may reuse memory that the process has kept of freed tensors.
        while during - before < MORE // 2 and len(tensors) <= before // MORE + 1:
            tensors.append(torch.ones(MORE // 4, dtype=torch.float32, device=subject.device))
            during = _reported(backend.memory())
        size = len(tensors) * MORE
        assert during - before >= MORE // 2, f"allocated grew by {during - before} bytes, the tensors have {size}"
        tensors.clear()
        peak = backend.memory().peak
        assert peak is None or peak >= during, f"the peak is {peak}, but {during} bytes were in use"

    def test_resets_the_peak(self, subject: Subject) -> None:
        """`reset_peak` returns the peak until now; afterwards it is counted from what is in use."""
        backend = subject.plugins.backend
        memory = backend.memory(reset_peak=True)
        after = backend.memory()
        if memory.peak is None or after.peak is None:
            pytest.skip("the device reports no peak")
        assert after.peak <= memory.peak + MORE, f"the peak grew from {memory.peak} to {after.peak} when it was reset"


def _reported(memory: Memory) -> int:
    if memory.allocated is None:
        pytest.skip("the device does not report what is allocated")
    return memory.allocated
