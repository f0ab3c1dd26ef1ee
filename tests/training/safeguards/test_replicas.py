"""Replicas that differ: which ranks and which weights are named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import TrainingError
from pretrain.recipe.layout import lay_out
from pretrain.training.safeguards import of_recipe
from pretrain.training.safeguards.replicas import ReplicaCheck, describe

NAMES = ["word_embeddings.weight", "mlp.linear_fc1.weight (layer 7 of 12)", "mlp.linear_fc2.weight (layer 7 of 12)"]


def test_one_rank_against_the_others_is_named_with_its_weights():
    assert describe([[1, 2, 3], [1, 9, 3], [1, 2, 3]], NAMES, [1, 3, 5]) == (
        "weights differ from those of the other replicas: rank 3 in mlp.linear_fc1.weight (layer 7 of 12). Ranks 1 and "
        "5 are equal."
    )


def test_of_two_replicas_nobody_knows_which_one_is_wrong():
    text = describe([[1, 2, 3], [1, 9, 3]], NAMES, [0, 1])
    assert text.startswith("the replicas of ranks 0 and 1 do not hold equal weights: mlp.linear_fc1.weight (layer 7 ")
    assert text.endswith("No majority of them is equal, so that the wrong one is not known.")


def test_many_weights_are_counted():
    names = [f"weight {number}" for number in range(9)]
    text = describe([[1] * 9, [2] * 9, [1] * 9], names, [0, 1, 2])
    assert "rank 1 in weight 0, weight 1, weight 2, weight 3, weight 4 and 4 more. Ranks 0 and 2 are equal." in text


def test_many_ranks_are_shortened():
    text = describe([[1]] * 63 + [[2]], ["weight"], list(range(64)))
    assert text.endswith("rank 63 in weight. Ranks 0, 1, 2, 3, 4, 5, ... and 62 are equal.")


@given(wrong=st.sets(st.integers(min_value=0, max_value=6), min_size=1, max_size=3))
def test_any_minority_is_named(wrong):
    hashes = [[100 + rank if rank in wrong else 7] for rank in range(7)]
    text = describe(hashes, ["weight"], list(range(7)))
    named = text.split(": ", 1)[1].split(". Ranks")[0]
    assert named == "; ".join(f"rank {rank} in weight" for rank in sorted(wrong))


def test_ranks_that_each_differ_in_another_weight_are_all_named():
    assert describe([[9, 1, 1], [1, 9, 1], [1, 1, 9]], ["a", "b", "c"], [0, 1, 2]) == (
        "weights differ from those of the other replicas: rank 0 in a; rank 1 in b; rank 2 in c."
    )
    assert describe([[9, 1], [1, 9], [1, 1]], ["a", "b"], [0, 1, 2]).endswith("Rank 2 has the weights of the majority.")


def test_a_difference_that_is_gone_when_it_is_looked_for_is_told():
    text = describe([[1, 2, 3]] * 2, NAMES, [0, 1])
    assert text.startswith("weights of ranks 0 and 1 differed, and did not when they were compared again, one by one")


@given(
    hashes=st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 2), min_size=size, max_size=size), min_size=2, max_size=6)
    )
)
def test_whatever_differs_is_told_in_one_sentence_or_two(hashes):
    names = [f"weight {number}" for number in range(len(hashes[0]))]
    text = describe(hashes, names, list(range(len(hashes))))
    for name, column in zip(names, zip(*hashes, strict=True), strict=True):
        assert (name in text) == (len(set(column)) > 1)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_gather_right_before_the_comparison_is_told_at_the_start(make, monkeypatch, overlaps):
    monkeypatch.setattr(of_recipe.groups, "data_parallel_group", lambda: None)
    zero = ("parallel={use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}",)
    recipe, notes = make("train.check_replicas_interval=5", *zero * overlaps), []
    check = of_recipe.replica_check(recipe, None, lay_out(recipe, 2), SimpleNamespace(note=notes.append))
    assert [at for at in range(1, 12) if check.is_due(at)] == [5, 10]
    assert [("gathered once more right before they are compared" in note) for note in notes] == [True] * overlaps


class Replicas(ReplicaCheck):
    """A check whose comparisons have these results."""

    def __init__(self, *found):
        super().__init__(engine=None, group=None, every=10)
        self.found = iter(found)

    def _difference(self):
        return next(self.found)


@pytest.mark.usefixtures("alone")
def test_a_comparison_that_a_rollback_has_taken_back_is_not_named():
    check = Replicas(
        None,
        None,
        None,
        "rank 1 in a.",
    )
    for iteration in (10, 20, 30):
        check.compare(iteration)
    with pytest.raises(TrainingError, match=r"Found after iteration 20\. They were equal after iteration 10: "):
        check.compare(20)


@pytest.mark.parametrize("hashes", [[[1], [1], [2], [2]], [[1], [2], [3], [3]]])
def test_half_of_the_replicas_are_no_majority(hashes):
    assert describe(hashes, ["weight"], [0, 1, 2, 3]).startswith("the replicas of ranks 0, 1, 2 and 3 do not hold")
