"""Compiled softmax kernels for a GPU that is not here: widths of loads, addresses, registers."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from kit.offline_softmax import ROWS, describe
from kit.registers import TABLE

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("compilation")]
REGISTERS = 65536
"""Registers of a multiprocessor, on every architecture from 8.0 on."""

TRITON = json.loads(TABLE.read_text())["triton"]

needs_its_triton = pytest.mark.skipif(version("triton") != TRITON, reason=f"the figures are those of Triton {TRITON}")


@pytest.fixture(scope="module")
def compiled(compiler):
    return compiler(describe, 90)


def test_every_kernel_was_compiled_for_every_mask(compiled):
    assert {(kernel["name"], kernel["mask"]) for kernel in compiled} == {
        (f"{way}_{kind}", mask) for way in ("forward", "backward") for kind in ("tile", "long") for mask in ROWS
    }


def test_every_load_and_store_moves_16_bytes_of_a_thread(compiled):
    """Also those of causal rows, which end anywhere: Triton must see that neighbours are masked alike."""
    narrow = {kernel["name"]: set(kernel["moves"]) - {"ld.global.v4.b32", "st.global.v4.b32"} for kernel in compiled}
    assert all(kernel["moves"] for kernel in compiled)
    assert {name: moves for name, moves in narrow.items() if moves} == {}


@needs_its_triton
def test_nothing_is_spilled_and_at_least_one_program_fits(compiled):
    assert [kernel for kernel in compiled if kernel["stack"]] == []
    assert [kernel for kernel in compiled if kernel["registers"] * kernel["threads"] > REGISTERS] == []


@needs_its_triton
def test_short_rows_leave_room_for_ten_programs(compiled):
    """The figures by which the tiles were chosen: FORWARD and BACKWARD of kernels.triton.softmax."""
    short = [kernel for kernel in compiled if kernel["threads"] == 128 and kernel["dtype"] == "torch.bfloat16"]
    assert short
    assert [kernel for kernel in short if 10 * kernel["registers"] * 128 > REGISTERS] == []


def test_addresses_of_rows_have_64_bits(compiled):
    """There may be more than 2^31 scores. Long rows are addressed by their start; 32 bits count what is in them."""
    assert [kernel for kernel in compiled if kernel["name"].endswith("tile") and "i32" in kernel["offsets"]] == []
    assert [kernel for kernel in compiled if "i32" in kernel["row offsets"]] == []
    assert all(kernel["row offsets"] for kernel in compiled if kernel["name"].endswith("long"))
