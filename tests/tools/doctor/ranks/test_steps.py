"""Findings of all ranks as one list."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from pretrain.recipe import make_recipe
from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.steps import cores_step, merged, own_step
from recipe.smallest import SMALLEST


def finding(text, verdict=Verdict.LOOK, check="device memory"):
    return Finding(check=check, verdict=verdict, text=text)


def merge(*of_ranks):
    found = {rank: [asdict(each) for each in findings] for rank, findings in enumerate(of_ranks)}
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
    found = {rank: [asdict(finding(text, Verdict.OK, check))] for rank, text in enumerate(texts)}
    return [(each.verdict, each.text, each.ranks) for each in merged(found, len(texts))]


@pytest.mark.parametrize("check", ["device", "driver", "libraries", "remark of a plugin"])
def test_devices_and_software_that_are_not_equal_are_shown_with_all_values(check):
    assert values(check, "A 1", "A 1", "B 2") == [
        (Verdict.LOOK, "differs between ranks. ranks 0-1: A 1; rank 2: B 2", ())
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
        (verdict, f"differs between ranks. rank 0: {usual}; rank 1: {other}", ())
    ]


@pytest.mark.parametrize("check", ["matmul", "shared memory", "kernel norm", "kernels"])
def test_measurements_may_differ(check):
    assert values(check, "1", "2") == [(Verdict.OK, "1 (rank 0; ok with other values: rank 1)", ())]


def test_several_ok_findings_of_one_rank_stay():
    assert len(merge([finding("a", Verdict.OK), finding("b", Verdict.OK)], [finding("c", Verdict.OK)])) == 3


def test_ranks_in_words():
    assert rank_names([3]) == "rank 3"
    assert rank_names([5, 0, 3, 4, 9]) == "ranks 0, 3-5, 9"


def judged(*of_ranks):
    """Judge ranks by the kernels that each would take."""
    steps = [own_step([], has_device=True, world_size=len(of_ranks), kernels=kernels) for kernels in of_ranks]
    return steps[0].judge({rank: step.measure(None) for rank, step in enumerate(steps)})


def test_ranks_that_would_take_different_kernels_are_named():
    norms = ["apex (a 1)", "torch (b 2)", "apex (a 1)"]
    (found,) = judged(*({"norm": norm, "linear": "torch (b 2)"} for norm in norms))
    assert (found.check, found.verdict) == ("kernel norm", Verdict.WRONG)
    assert found.text == "the ranks would use different kernels: ranks 0, 2: apex (a 1); rank 1: torch (b 2)"


def test_a_rank_without_kernels_does_not_differ():
    assert judged({"norm": "torch"}, {}) == []


def cores_of(workers, *ranks):
    """Judge ranks, each a host and its cores."""
    recipe = make_recipe(SMALLEST, [f"data.num_workers={workers}"])
    (found,) = cores_step(recipe).judge(
        {rank: {"host": host, "cores": cores} for rank, (host, cores) in enumerate(ranks)}
    )
    return found


@pytest.mark.parametrize(
    ("workers", "cores", "verdict"), [(1, [0, 1, 2, 3], Verdict.OK), (1, [0], Verdict.LOOK), (0, [0, 1], Verdict.OK)]
)
def test_two_ranks_and_their_workers_need_a_core_each(workers, cores, verdict):
    assert cores_of(workers, ("a", cores), ("a", cores)).verdict is verdict


def test_ranks_that_are_bound_to_cores_of_their_own_have_them_together():
    assert cores_of(1, ("a", [0, 1]), ("a", [2, 3])).verdict is Verdict.OK


def test_the_host_with_the_fewest_cores_for_a_rank_is_named():
    found = cores_of(2, ("a", [*range(6)]), ("a", [*range(6)]), ("b", [0]))
    assert found.text == "1 core on b; its ranks need 1 x (1 + 2 data workers) = 3"
    assert found.remedy.startswith("Allow 3 cores (")
