"""Registers of the Triton kernels at every shape that they accept; registers.json has the number of each.

The table is what ptxas says for compute capabilities 8.0, 9.0 and 10.0; `python -m kit.registers --write` makes it.
"""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from kit.register_calls import CALLS
from kit.registers import CAPABILITIES, TABLE, measure, source_hash
from pretrain.conformance import examples
from pretrain.plugins.offer import Decline, Offer
from pretrain_cuda import norm

REGISTERS = 65536
"""Registers of a multiprocessor, on every architecture from 8.0 on."""

TABLED = json.loads(TABLE.read_text())
ROWS = TABLED["kernels"]


@pytest.mark.parametrize("capability", [str(capability) for capability in CAPABILITIES])
def test_at_most_two_registers_are_spilled_and_a_program_fits(capability):
    """At 8.0 and 9.0 none. At 10.0 four kernels spill two, 8 bytes, with the ptxas of Triton 3.7."""
    most = 8 if capability == "100" else 0
    assert [name for name, row in ROWS.items() if row[capability][1] > most] == []
    assert [name for name, row in ROWS.items() if row[capability][0] * row[capability][2] > REGISTERS] == []


def test_all_that_is_accepted_is_in_the_table():
    tabled = {name.rpartition(": ")[0] for name in ROWS}
    assert tabled == {f"{operation}: {asked}" for operation, calls in CALLS.items() for asked, _ in calls()}


def test_the_longest_rows_of_a_norm_are_in_the_table():
    """Longer rows are declined."""
    longest = max(int(name.split("hidden ")[1].partition(":")[0]) for name in ROWS if name.startswith("norm"))
    offers = {size: norm.answers(examples.norm(hidden=size))[2] for size in (longest, longest + 1)}
    assert isinstance(offers[longest], Offer)
    assert isinstance(offers[longest + 1], Decline)


needs_its_triton = pytest.mark.skipif(
    version("triton") != TABLED["triton"], reason=f"the table is of Triton {TABLED['triton']}; here is another"
)


@needs_its_triton
@pytest.mark.xdist_group("compilation")
def test_the_norm_of_gpt3_is_as_the_table_says(compiler):
    found = compiler(measure, [90], "norm: LayerNorm, bf16, hidden 12288")
    assert len(found) == 3
    assert found == {name: {"90": ROWS[name]["90"]} for name in found}


def test_the_table_is_of_these_kernels():
    """After a change of a kernel it is made again: `python -m kit.registers --write` in backends/cuda/tests."""
    assert TABLED["source"] == source_hash()


@pytest.mark.full
@pytest.mark.slow
@needs_its_triton
@pytest.mark.xdist_group("compilation")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_is_as_the_table_says(compiler, capability):
    found = compiler(measure, [capability])
    assert found == {name: {str(capability): row[str(capability)]} for name, row in ROWS.items()}
