"""Buffers of HCCL's communicators, by group."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pretrain.errors import BackendError
from pretrain_ascend import collectives


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("HCCL_BUFFSIZE", raising=False)
    monkeypatch.delenv(collectives.BUFFERS, raising=False)
    group = SimpleNamespace(ProcessGroupHCCL=SimpleNamespace(Options=SimpleNamespace))
    monkeypatch.setattr(collectives, "import_module", lambda _: group)
    return monkeypatch


def test_groups_that_sum_scalars_get_little():
    assert collectives.sizes() == {"mp": 16, "intra_dist_opt_instance": 16}


def test_the_user_s_sizes_win(environment):
    environment.setenv(collectives.BUFFERS, "tp=400, mp=32")
    assert collectives.sizes() == {"mp": 32, "intra_dist_opt_instance": 16, "tp": 400}


def test_a_size_for_all_groups_is_left_to_hccl(environment):
    environment.setenv("HCCL_BUFFSIZE", "120")
    assert collectives.sizes() == {}


def test_only_named_groups_get_options():
    assert collectives.options_of({"tp": 48}, "tp").hccl_config == {"hccl_buffer_size": 48}
    assert collectives.options_of({"tp": 48}, "dp") is None


@pytest.mark.parametrize("given", ["tp", "tp=", "tp=0", "=4", "tp=x", "tp=1.5"])
def test_a_malformed_size_is_an_error(environment, given):
    environment.setenv(collectives.BUFFERS, given)
    with pytest.raises(BackendError, match=rf"{collectives.BUFFERS} is '{given}': .*\n.*tp=400,dp=100"):
        collectives.sizes()
