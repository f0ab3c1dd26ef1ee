"""Findings of all ranks as one list."""

import pytest

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.steps.merged_findings import as_value, merged


def finding(text, verdict=Verdict.LOOK, check="device memory"):
    return Finding(check=check, verdict=verdict, text=text)


def merge(*of_ranks):
    found = {rank: [as_value(each) for each in findings] for rank, findings in enumerate(of_ranks)}
    return [(each.text, each.ranks) for each in merged(found, len(of_ranks))]


def test_equal_findings_are_one():
    same = finding("low")
    assert merge([same], [same]) == [("low", ())]
    assert merge([same], [finding("lower")], [same]) == [("low", (0, 2)), ("lower", (1,))]


def test_ok_findings_with_other_values_are_one_and_say_so():
    fine = [finding(f"{free} GiB free", Verdict.OK) for free in (3, 4, 5)]
    assert merge(*([each] for each in fine)) == [("3 GiB free (rank 0; ok with other values: ranks 1-2)", ())]
    assert merge([fine[0]], [fine[1]], [finding("none free")]) == [
        ("3 GiB free (rank 0; ok with other values: rank 1)", (0, 1)),
        ("none free", (2,)),
    ]


def values(check, *texts):
    found = {rank: [as_value(finding(text, Verdict.OK, check))] for rank, text in enumerate(texts)}
    return [(each.verdict, each.text, each.ranks) for each in merged(found, len(texts))]


@pytest.mark.parametrize("check", ["device", "driver", "libraries", "remark of a plugin"])
def test_devices_and_software_that_are_not_equal_are_shown_with_all_values(check):
    assert values(check, "A 1", "A 1", "B 2") == [
        (Verdict.LOOK, "not equal on all ranks. ranks 0-1: A 1; rank 2: B 2", ())
    ]
    assert values(check, "A 1", "A 1") == [(Verdict.OK, "A 1", ())]


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ("Python 3.11.8, torch 2.13.0, megatron-core 0.16.1, numpy 2.4.6", Verdict.LOOK),
        ("Python 3.11.7, torch 2.12.1, megatron-core 0.16.1, numpy 2.4.6", Verdict.WRONG),
        ("Python 3.11.7, torch 2.13.0, megatron-core 0.16.0, numpy 2.4.6", Verdict.WRONG),
    ],
)
def test_ranks_with_another_torch_or_megatron_core_are_wrong(other, verdict):
    usual = "Python 3.11.7, torch 2.13.0, megatron-core 0.16.1, numpy 2.4.6"
    assert values("versions", usual, other) == [
        (verdict, f"not equal on all ranks. rank 0: {usual}; rank 1: {other}", ())
    ]


@pytest.mark.parametrize("check", ["matmul", "shared memory", "kernel norm", "kernels"])
def test_measurements_may_differ(check):
    assert values(check, "1", "2") == [(Verdict.OK, "1 (rank 0; ok with other values: rank 1)", ())]


def test_several_ok_findings_of_one_rank_stay():
    assert len(merge([finding("a", Verdict.OK), finding("b", Verdict.OK)], [finding("c", Verdict.OK)])) == 3


def test_ranks_in_words():
    assert rank_names([3]) == "rank 3"
    assert rank_names([5, 0, 3, 4, 9]) == "ranks 0, 3-5, 9"
