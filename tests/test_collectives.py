"""Ranks connect without a line of gloo on standard output."""

import os

import pytest
import torch
from torch.torch_version import TorchVersion

from pretrain.collectives import quiet_gloo


@pytest.mark.parametrize(
    ("version", "hidden"), [("2.9.1+cpu", True), ("2.10.0", True), ("2.11.0", False), ("2.15.0+cpu", False)]
)
def test_what_gloo_prints_while_groups_are_made_is_hidden_where_it_prints(capfd, monkeypatch, version, hidden):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    print("before")
    with quiet_gloo():
        os.write(1, b"[Gloo] Rank 0 is connected to 0 peer ranks.\n")
    print("after")
    assert ("Gloo" in capfd.readouterr().out) == (not hidden)
