"""Kernels of one test leave Triton's language unpatched for the next test."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import triton.language as tl

from kit import language
from pretrain.conformance import examples
from pretrain_cuda import cross_entropy

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled on this machine's GPU")


def run_a_kernel():
    kernel = cross_entropy.answers(examples.cross_entropy()).build({})
    kernel(torch.zeros(2, 1, 64), torch.zeros(2, 1, dtype=torch.int64))


def test_patches_that_the_interpreter_leaves_are_undone():
    run_a_kernel()  # it calls tl.max and tl.sum
    before = tl.core.arange
    assert "triton.language.core.arange" in language.restore()
    assert tl.core.arange is not before
    assert language.restore() == []
    run_a_kernel()


def test_additions_to_the_language_and_removals_are_undone():
    tl.made_up = 1
    del tl.tensor.__add__
    assert {"triton.language.made_up", "tensor.__add__"} <= set(language.restore())
    assert not hasattr(tl, "made_up")
    run_a_kernel()


def test_a_second_copy_is_found(monkeypatch):
    copy = ModuleType("triton.language.core")
    copy.tensor = type("tensor", (), {})
    monkeypatch.setitem(sys.modules, "triton.language.core", copy)
    assert language.copies() == ["triton.language.core"]


def test_nothing_of_triton_is_imported_in_the_midst_of_a_kernel():
    """Modules that are imported while the language is patched may keep the patches."""
    before = set(sys.modules)
    run_a_kernel()
    assert [name for name in set(sys.modules) - before if name.startswith("triton")] == []
