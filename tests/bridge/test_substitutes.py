"""Substitutes for names that torch's module of a device lacks. tests/abacus trains with all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.bridge.megatron.names import HostStream, Substitutes, TorchStreams
from pretrain.cpu.backend import CpuBackend
from pretrain.plugins.backend import Available, Backend, Memory
from pretrain.plugins.device_module import MEMBERS


class Bare(Backend):
    """A device whose module has what is needed; meta tensors stand for its tensors."""

    name, device_type, process_group = "bare", "meta", "gloo"

    def availability(self):
        return Available()

    def device(self, local_rank):
        return torch.device("meta")

    def memory(self, *, reset_peak=False):
        return Memory(allocated=5, peak=7, total=None)


@pytest.fixture
def module():
    state = {"device": 0, "rng": torch.zeros(8, dtype=torch.uint8)}
    return SimpleNamespace(
        state=state,
        current_device=lambda: state["device"],
        set_device=lambda device: state.update(device=device),
        get_rng_state=lambda device: state["rng"],
        set_rng_state=lambda rng, device: state.update(rng=rng),
        manual_seed=lambda seed: state.update(rng=torch.full((8,), seed, dtype=torch.uint8)),
    )


@pytest.fixture
def substitutes(module):
    return Substitutes(Bare(), module)


@pytest.fixture
def no_streams(monkeypatch):
    def refuse(**options):
        msg = "Backend doesn't support create a new Stream"  # c10/core/impl/DeviceGuardImplInterface.h
        raise RuntimeError(msg)

    monkeypatch.setattr(torch, "Stream", refuse)


@pytest.mark.parametrize("member", [member for member in MEMBERS if not member.needed], ids=lambda member: member.name)
def test_everything_that_may_be_missing_has_a_substitute(substitutes, no_streams, member):
    if member.name == "mem_get_info":
        return  # of Backend.memory alone
    assert hasattr(substitutes, member.name)


def test_a_tensor_class_knows_its_tensors(substitutes):
    assert isinstance(torch.empty(1, dtype=torch.float16, device="meta"), substitutes.HalfTensor)
    assert not isinstance(torch.empty(1, device="meta"), substitutes.HalfTensor)
    assert not isinstance(torch.empty(1, dtype=torch.float16), substitutes.HalfTensor)
    assert not isinstance(1.0, substitutes.FloatTensor)


def test_the_default_generator_is_its_state(substitutes, module):
    generator = substitutes.default_generators[torch.device("meta")]
    generator.manual_seed(3)
    state = generator.get_state()
    assert state.unique().tolist() == [3]
    generator.set_state(torch.ones(8, dtype=torch.uint8))
    assert module.state["rng"].unique().tolist() == [1]


def test_a_device_is_the_current_one_for_a_while(substitutes, module):
    with substitutes.device(2):
        assert module.state["device"] == 2
    assert module.state["device"] == 0
    with substitutes.device(None):
        assert module.state["device"] == 0


def test_a_device_whose_guard_makes_no_streams_is_synchronous(substitutes, no_streams):
    assert not TorchStreams("meta").are_supported
    assert not substitutes.has_streams
    assert substitutes.Stream is HostStream
    assert isinstance(substitutes.current_stream(), HostStream)
    assert substitutes.Event().query()


def test_a_class_of_streams_is_enough_to_have_streams(substitutes, module, no_streams):
    module.Stream = HostStream
    assert substitutes.has_streams


def test_torchs_own_streams_serve_where_the_guard_makes_them(substitutes):
    assert TorchStreams("meta").are_supported
    assert substitutes.has_streams
    with substitutes.stream(substitutes.Stream()) as stream:
        assert isinstance(stream, torch.Stream)
    with substitutes.stream(None):
        pass


def test_memory_is_that_of_the_backend(substitutes):
    assert (substitutes.memory_allocated(), substitutes.max_memory_allocated(0)) == (5, 7)


def test_a_device_that_counts_nothing_reports_nothing():
    backend = type("Uncounted", (CpuBackend,), {"memory": Backend.memory})()
    assert backend.memory(reset_peak=True) == Memory(allocated=None, peak=None, total=None)


def test_memory_is_pinned_for_the_accelerator_alone(monkeypatch):
    accelerator = torch.device("cuda", 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    assert not CpuBackend().pinned_memory()
    assert not Bare().pinned_memory()
    accelerator = torch.device("meta")
    assert Bare().pinned_memory()
