"""A deliberately wrong backend fails the conformance kit: every class, every mutant, and where it should."""

from __future__ import annotations

import os

import pytest

from pretrain.testing.suite import Chosen

pytestmark = pytest.mark.ranks  # each run of the kit starts two

CAUGHT = {
    "uniform_rows": "TestSoftmax::test_queries_that_see_no_key_get_zeros",
    "own_noise": "TestSoftmax::test_repeats_when_deterministic",
    "ignores_mask": "TestAttention::test_agrees_with_float64",
    "ignores_dropout": "TestAttention::test_dropout",
    "no_epsilon": "TestNorm::test_adds_epsilon",
    "in_16_bits": "TestNorm::test_accumulates_16_bits_in_fp32",
    "interleaved": "TestRotary::test_agrees_with_float64",
    "tanh_for_erf": "TestActivation::test_agrees_with_float64",
    "drops_in_evaluation": "TestBiasDropoutAdd::test_agrees_with_float64_outside_training",
    "own_generator": "TestRandom::test_a_restored_state_repeats_the_dropout",
    "counts_padding": "TestCrossEntropy::test_agrees_with_float64",
    "local_sum": "TestCrossEntropy::test_two_ranks",
    "does_not_wait": "TestLinear::test_two_ranks",
    "adds_and_returns": "TestLinear::test_adds_to_main_grad",
    "uncorrected": "TestOptimizer::test_agrees_with_float64",
    "step_by_parameter": "TestOptimizer::test_is_shaped_like_apex",
}


class Recorder:
    """A pytest plugin that keeps what failed."""

    def __init__(self):
        self.failed, self.passed = [], []

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]  # pytest below 9.2 names no file where there is no root
        if report.failed:
            self.failed.append(name)
        elif report.when == "call" and report.passed:
            self.passed.append(name)


def run_kit(mutant, expression):
    recorder = Recorder()
    arguments = ["--pyargs", "pretrain.testing.suite", "-c", os.devnull, "-p", "no:cacheprovider", "-q", "--tb=no"]
    code = pytest.main([*arguments, "-k", expression], plugins=[Chosen(f"testing.mutants:{mutant}"), recorder])
    assert code == pytest.ExitCode.TESTS_FAILED
    return recorder


@pytest.fixture(scope="module")
def wrong():
    """The kit against a backend with one or two wrong kernels for each operation; the reference's are left out."""
    return run_kit("WRONG", "not reference")


@pytest.mark.parametrize(("mutant", "test"), CAUGHT.items(), ids=CAUGHT)
def test_a_wrong_kernel_is_caught(wrong, mutant, test):
    failed = [name for name in wrong.failed if name.startswith(test) and f"mutant-{mutant}" in name]
    assert failed, f"{test} passes for {mutant}"


def test_a_wrong_peak_is_caught(wrong):
    assert "TestMemory::test_is_consistent" in wrong.failed


def test_what_is_right_about_a_wrong_kernel_passes(wrong):
    assert any("mutant-tanh_for_erf" in name and "gelu_tanh" in name for name in wrong.passed)
    assert any("mutant-ignores_mask" in name and "causal" in name for name in wrong.passed)
    assert any("mutant-does_not_wait" in name for name in wrong.passed)


def test_collectives_that_send_nothing_are_caught():
    silent = run_kit("SILENT", "TestCollectives and not reference")
    names = {name.partition("silent-silent-")[2].rstrip("]") for name in silent.failed}
    assert {"all_reduce-sync", "all_reduce-async", "all_gather-sync", "send_recv-async"} <= names
