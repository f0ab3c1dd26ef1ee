"""Findings of all ranks as one list."""

from pretrain.doctor.finding import Finding, Verdict
from pretrain.doctor.ranks.rank_names import rank_names
from pretrain.doctor.ranks.steps.merged_findings import as_value, merged


def finding(text, verdict=Verdict.LOOK, check="memory"):
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


def test_several_ok_findings_of_one_rank_stay():
    assert len(merge([finding("a", Verdict.OK), finding("b", Verdict.OK)], [finding("c", Verdict.OK)])) == 3


def test_ranks_in_words():
    assert rank_names([3]) == "rank 3"
    assert rank_names([5, 0, 3, 4, 9]) == "ranks 0, 3-5, 9"
