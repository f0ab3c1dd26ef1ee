"""Choice of conformance tests for the simulated NPU: one of fp16 and bf16 tests the calls, fp32 the formula."""

import re
import sys
from collections import Counter

import pytest

PREFERRED = ("bf16", "fp16", "fp32")
DTYPE = re.compile(r"(?<=[-\[])(?:bf16|fp16|fp32)(?=[-\]])")
FORMULA = re.compile(r"::test_agrees_with_float64\[.*-fp32\]")  # a 16-bit tolerance hides tanh in place of erf
LONG_SUMS = re.compile(r"[sq](2112|8192)")  # they test a device's arithmetic; the simulator's is the CPU's
# plain torch, which tests/cpu compares; of these three there is nothing else on an NPU
REFERENCE = re.compile(r"::Test(?!Linear|BiasDropoutAdd|Collectives)\w+::.*\[reference-")
TOO_LONG = (
    "::TestTraining::",  # simulated/test_training.py has more layouts
    "::test_two_ranks[",  # collectives: as the simulator's own test_two_ranks.py; linear, cross entropy: trainings
    "::TestFake::",  # a minute and a half; simulated/test_stand_ins.py has what kernels keep, and the allocator
)

ATTENTION_ONE_IN = 3
"""Of so many cases of each test of attention, the slowest ones, one is run on a commit."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark `full` what only CANN's numbers could fail; a real NPU runs every test."""
    if "ascend_simulator.start" not in sys.modules:
        return
    mine = [item for item in items if item.path.name == "test_conformance.py"]
    one_dtype, attention = {}, Counter()
    for item in sorted(mine, key=rank_of_dtype):
        one_dtype.setdefault(DTYPE.sub("", item.nodeid), item)
    chosen = set(map(id, one_dtype.values()))
    for item in mine:
        is_chosen = id(item) in chosen or FORMULA.search(item.nodeid)
        is_long = any(test in item.nodeid for test in TOO_LONG) or LONG_SUMS.search(item.nodeid)
        if not is_chosen or is_long or REFERENCE.search(item.nodeid):
            item.add_marker(pytest.mark.full)
        elif "::TestAttention::" in item.nodeid:
            if attention[item.originalname] % ATTENTION_ONE_IN:
                item.add_marker(pytest.mark.full)
            attention[item.originalname] += 1


def rank_of_dtype(item):
    """Return how late in PREFERRED the test's dtype is."""
    dtypes = DTYPE.findall(item.nodeid)
    return PREFERRED.index(dtypes[-1]) if dtypes else 0
