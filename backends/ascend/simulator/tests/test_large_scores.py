"""Query-key layer scaling protects on a 910A too: scores are divided before they are rounded to fp16."""

import pytest

from simulator_kit import programs

pytestmark = pytest.mark.xdist_group("ranks")  # one worker: one start of the program, forked as ranks are


@pytest.fixture(scope="module")
def found():
    return programs.run("large_scores", ASCEND_SIMULATOR_SOC="Ascend910A")[0]


def test_the_scores_are_too_large(found):
    assert found["largest raw score"] > 65504


@pytest.mark.parametrize("kernel", ["triangle_fused causal", "query_first causal", "query_first arbitrary"])
def test_the_backends_kernels_are_right_and_raise_no_flag(found, kernel):
    """Nearly all weight is on one key; scores near 118,000 are stored divided by 24, with an error of 2 / 24."""
    assert found[kernel]["error"] < 0.05
    assert not found[kernel]["flag"]


@pytest.mark.parametrize("kernel", ["core causal", "core arbitrary"])
def test_the_core_s_kernel_shows_what_they_are_for(found, kernel):
    assert found[kernel]["error"] > 0.5
    assert found[kernel]["flag"]
