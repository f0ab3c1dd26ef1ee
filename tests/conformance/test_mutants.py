"""A deliberately wrong backend fails the conformance kit: every class, every mutant, and where it should."""

from __future__ import annotations

import os

import pytest

from pretrain.conformance.suite import Chosen

pytestmark = pytest.mark.ranks  # each run of the kit starts two

CAUGHT = {
    "uniform_rows": "TestSoftmax::test_queries_that_see_no_key_get_zeros",
    "own_noise": "TestSoftmax::test_repeats_when_deterministic",
    "ignores_mask": "TestAttention::test_agrees_with_float64",
    "ignores_dropout": "TestAttention::test_dropout",
    "sees_one_more": "TestAttention::test_sees_a_window",
    "aligned_at_first": "TestAttention::test_queries_are_the_last_of_the_keys",
    "ends_one_late": "TestAttention::test_documents_end_anywhere",
    "sees_the_document_before": "TestAttention::test_keeps_documents_apart",
    "no_epsilon": "TestNorm::test_adds_epsilon",
    "in_16_bits": "TestNorm::test_accumulates_half_precision_in_fp32",
    "keeps_the_last_call": "TestCallOrder::test_the_call_made_last_goes_backward_first",
    "spoils_what_it_keeps": "TestCallOrder::test_a_graph_that_is_kept_goes_backward_twice",
    "interleaved": "TestRotary::test_agrees_with_float64",
    "by_angles": "TestRotary::test_agrees_with_float64",
    "tanh_for_erf": "TestActivation::test_agrees_with_float64",
    "drops_in_evaluation": "TestBiasDropoutAdd::test_agrees_with_float64_outside_training",
    "own_generator": "TestRandom::test_a_restored_state_repeats_the_dropout",
    "counts_padding": "TestCrossEntropy::test_agrees_with_float64",
    "local_sum": "TestCrossEntropy::test_two_ranks",
    "does_not_wait": "TestLinear::test_two_ranks",
    "adds_and_returns": "TestLinear::test_adds_to_main_grad",
    "one_row_late": "TestGroupedLinear::test_agrees_with_float64",
    "even_counts": "TestGroupedLinear::test_agrees_with_float64",
    "leaves_gradients_of_empty_experts": "TestGroupedLinear::test_agrees_with_float64",
    "adds_experts_and_returns": "TestGroupedLinear::test_adds_to_main_grad",
    **dict.fromkeys(
        ("free_scales", "saturates", "other_dimension", "one_element_type", "ignores_the_wgrad"),
        "TestQuantization::test_operands",
    ),
    "last_token_first": "TestMoePermute::test_sorts_by_expert_and_token",
    "weights_by_token": "TestMoePermute::test_agrees_with_float64",
    "loses_the_gradient_of_weights": "TestMoePermute::test_agrees_with_float64",
    "adds_in_any_order": "TestMoePermute::test_repeats_when_deterministic",
    "bias_weighs": "TestRouter::test_agrees_with_float64",
    "divides_by_all": "TestRouter::test_agrees_with_float64",
    "group_of_its_best": "TestRouter::test_agrees_with_float64",
    "zeros_for_other_groups": "TestRouter::test_agrees_with_float64",
    "higher_of_equals": "TestRouter::test_takes_the_lower_of_equal_experts",
    "over_a_threshold": "TestRouter::test_always_chooses_as_many",
    "uncorrected": "TestOptimizer::test_agrees_with_float64",
    "step_by_parameter": "TestOptimizer::test_is_shaped_like_apex",
    **dict.fromkeys(
        ("truncates_state", "updates_from_the_rounded", "multiplies_in_bf16"), "TestOptimizer::test_rounds_its_state"
    ),
    "keeps_fp32": "TestOptimizer::test_is_shaped_like_apex",
    "loads_in_fp32": "TestOptimizer::test_continues_from_a_checkpoint",
    "stops_early": "TestOptimizer::test_orthogonalizes",
    "iterates_in_16_bits": "TestOptimizer::test_orthogonalizes",
    "one_norm_for_all": "TestOptimizer::test_orthogonalizes",
    "keeps_one_more": "TestFake::test_keeps_what_the_kernel_keeps",
    "hides_workspace": "TestFake::test_allocates_what_the_kernel_allocates",
    "halves_state": "TestFake::test_optimizer",
}
PAIRS = ["local_sum", "does_not_wait"]
"""Those that are caught by two ranks."""

ENOUGH = {
    "ignores_mask": "d16-s33",
    "sees_one_more": "window",
    "aligned_at_first": "d16",
    "sees_the_document_before": "d16-s33",
    "free_scales": "rowwise",
    "saturates": "rowwise",
    "other_dimension": "rowwise and e3",
    "one_element_type": "tensorwise and e3",
    "ignores_the_wgrad": "quantized_wgrad and rowwise",
}
"""Mutant -> which cases of its test are enough to run, where not all of them are run."""


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


def run_kit(backend, expression):
    recorder = Recorder()
    arguments = ["--pyargs", "pretrain.conformance.suite", "-c", os.devnull, "-p", "no:cacheprovider", "-q", "--tb=no"]
    arguments += ["-p", "no:unraisableexception"]  # it collects the garbage of this whole process five times
    code = pytest.main([*arguments, "-k", expression], plugins=[Chosen(backend), recorder])
    assert code == pytest.ExitCode.TESTS_FAILED
    return recorder


def chosen_of(name):
    return f"(mutant-{name} and {CAUGHT[name].replace('::', ' and ')} and {ENOUGH.get(name, 'mutant')})"


@pytest.fixture(scope="module")
def wrong_pairs():
    """The kit's pairs of ranks against the kernels that are wrong in them alone."""
    return run_kit("conformance.mutants:WRONG", " or ".join(map(chosen_of, PAIRS)))


@pytest.fixture(scope="module")
def wrong():
    """The kit against a backend with one or two wrong kernels for each operation, each in the test that must fail."""
    chosen = [chosen_of(name) for name in CAUGHT if name not in PAIRS]
    chosen.append(
        "(mutant-does_not_wait and TestLinear and test_agrees_with_float64)"
    )  # passes: one rank waits for none
    short = "not s2112 and not q2112 and not s8192"
    return run_kit("conformance.mutants:WRONG", f"(TestMemory or {' or '.join(chosen)}) and {short}")


@pytest.mark.parametrize("mutant", [name for name in CAUGHT if name not in PAIRS])
def test_a_wrong_kernel_is_caught(wrong, mutant):
    require_failed(wrong, mutant)


@pytest.mark.full
@pytest.mark.parametrize("mutant", PAIRS)
def test_a_kernel_that_is_wrong_on_two_ranks_is_caught(wrong_pairs, mutant):
    require_failed(wrong_pairs, mutant)


def require_failed(recorder, mutant):
    test = CAUGHT[mutant]
    failed = [name for name in recorder.failed if name.startswith(test) and f"mutant-{mutant}" in name]
    assert failed, f"{test} passes for {mutant}"


def test_a_wrong_peak_is_caught(wrong):
    assert "TestMemory::test_is_consistent" in wrong.failed


def test_tests_that_a_fault_does_not_affect_pass(wrong):
    assert any("mutant-tanh_for_erf" in name and "gelu_tanh" in name for name in wrong.passed)
    assert any("mutant-ignores_mask" in name and "causal" in name for name in wrong.passed)
    assert any("mutant-does_not_wait" in name for name in wrong.passed)


CORNERS = {
    "only_in_bf16": ("TestAttention::test_agrees_with_float64", "d16-s33 and bf16"),
    "only_with_heads_of_128": ("TestAttention::test_agrees_with_float64", "d128-s160"),
    "only_over_2048": ("TestAttention::test_agrees_with_float64", "d64-s2112"),
    "only_over_4096": ("TestAttention::test_agrees_over_4096_tokens", ""),
    "only_when_not_contiguous": ("TestAttention::test_takes_the_parts_of_one_projection", "not s2112 and causal"),
    "only_under_dropout": ("TestAttention::test_dropout", "s96"),
    "only_all_at_once": ("TestAttention::test_dropout", "s2112"),
    "own_scale": ("TestAttention::test_applies_the_requested_scale", ""),
    "drops_other_weights_backward": ("TestAttention::test_dropout", "s96"),
    "drops_the_same_in_every_head": ("TestAttention::test_dropout", "s96"),
    "first_documents_for_all": ("TestAttention::test_keeps_documents_apart", ""),
    "only_4096_keys": ("TestSoftmax::test_agrees_over_4096_keys", ""),
    "drifts_in_bf16": ("TestSoftmax::test_repeats_when_deterministic", ""),
    "ignores_the_gradient_of_scale": ("TestSoftmax::test_applies_the_requested_scale", ""),
    "writes_its_input": ("TestNorm::test_agrees_with_float64", "h48"),
    "looks_at_a_value": ("TestNorm::test_agrees_with_float64", "h48"),
    "own_epsilon": ("TestNorm::test_adds_epsilon", ""),
    "wrong_when_deterministic": ("TestNorm::test_repeats_when_deterministic", ""),
    "takes_nothing": ("TestCoverage::test_takes_a_request", ""),
    "forgets_its_seed": ("TestRandom::test_recomputation_drops_the_same", ""),
    "unscaled_in_fp16": ("TestBiasDropoutAdd::test_dropout", "h64"),
    "reads_its_output": ("TestBiasDropoutAdd::test_backward_needs_no_output", ""),
    "sums_ranks_in_fp32_alone": ("TestLinear::test_two_ranks", ""),
    "norm_in_16_bits": ("TestOptimizer::test_gradient_norm_of_half_precision", ""),
    "norm_on_the_host": ("TestOptimizer::test_gradient_norm", ""),
}
"""Mutant -> the test that must fail, and which of its cases are enough to run."""


@pytest.fixture(scope="module")
def corners():
    """The kit against kernels that are wrong in one corner, each in the test that must find it."""
    chosen = [
        " and ".join([f"corners-{name}", test.replace("::", " and "), *([f"({words})"] if words else [])])
        for name, (test, words) in CORNERS.items()
    ]
    rest = ["(TestCoverage and is_not_here)", "(TestCollectives and corners and batched)"]
    rest += ["(test_names_a_kernel and (rotary or norm))"]
    return run_kit("conformance.corners:CORNER", " or ".join([*(f"({each})" for each in chosen), *rest]))


@pytest.mark.full
@pytest.mark.parametrize(("mutant", "test"), [(name, test) for name, (test, _) in CORNERS.items()], ids=CORNERS)
def test_a_kernel_that_is_wrong_in_one_corner_is_caught(corners, mutant, test):
    failed = [name for name in corners.failed if name.startswith(test) and f"corners-{mutant}" in name]
    assert failed, f"{test} passes for {mutant}"


@pytest.mark.full
def test_a_hook_that_names_no_kernel_is_caught(corners):
    assert "TestCoverage::test_names_a_kernel[rotary]" in corners.failed
    assert "TestCoverage::test_names_a_kernel[norm]" in corners.passed


@pytest.mark.full
def test_messages_that_keep_their_order_pass(corners):
    assert {"sync", "async"} == {
        name.rpartition("-")[2].rstrip("]") for name in corners.passed if "batched_send_recv" in name
    }


@pytest.mark.full
def test_a_kernel_that_is_not_on_this_machine_is_not_a_failure(corners):
    assert not [name for name in [*corners.failed, *corners.passed] if "is_not_here" in name]


@pytest.mark.full
def test_collectives_that_send_nothing_are_caught():
    silent = run_kit("conformance.mutants:SILENT", "TestCollectives and not reference")
    names = {name.partition("silent-silent-fp32-")[2].rstrip("]") for name in silent.failed}
    assert {
        "all_reduce-sync",
        "all_reduce-async",
        "all_gather-sync",
        "send_recv-async",
        "batched_send_recv-sync",
    } <= names
