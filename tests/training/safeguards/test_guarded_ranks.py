"""Trainings of two ranks: a rollback equals what a user would do by hand, bit for bit; a flipped bit is found."""

from __future__ import annotations

import pytest

from training.safeguards import guarded_ranks

pytestmark = [pytest.mark.full, pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each of two ranks saw."""
    return guarded_ranks.run(tmp_path_factory.mktemp("guarded"), "ROLLBACKS")


@pytest.fixture(scope="module")
def seen_further(tmp_path_factory):
    """What each saw of further layouts and engines."""
    return guarded_ranks.run(tmp_path_factory.mktemp("further"), "ROLLBACKS_FULL")


@pytest.mark.parametrize("case", guarded_ranks.ROLLBACKS)
def test_a_rollback_equals_a_resume_by_hand_bit_for_bit(seen, case):
    check(seen, case)


@pytest.mark.parametrize("case", guarded_ranks.ROLLBACKS)
def test_an_update_that_is_skipped_leaves_everything_as_a_batch_that_is_left_out(seen, case):
    check_skip(seen, case)


@pytest.mark.parametrize("case", guarded_ranks.ROLLBACKS_FULL)
def test_so_it_is_in_further_layouts_and_engines(seen_further, case):
    check(seen_further, case)
    check_skip(seen_further, case)


def check(seen, case):
    for rank in seen:
        found = rank[case]
        assert [event["event"] for event in found["events"]] == ["rollback"] * len(found["events"])
        assert found["losses"][0]
        assert found["differing lines"] == []
        assert "compute" in found["causes"]  # the clock is on the attention that the model has
        # How the iterations came to be left out; by hand there is no watch.
        assert found["checkpoints"] == ["progress.left_out", "progress.losses"]


def check_skip(seen, case):
    first, other = (rank[case]["skip"] for rank in seen)
    assert first == other
    assert first["spikes"]
    assert set(first["spikes"]) <= set(first["skipped"])  # fp16 skips steps by itself too
    assert first["checkpoints"] == ["progress.losses"]  # there are none without a watch


def test_a_rank_whose_gradients_alone_were_not_finite_is_named(seen):
    for rank in seen:
        (text,) = rank["named"]
        assert text.startswith("loss nan in iteration 6, gradients not finite from iteration 5 on, first on rank 1 (")


def test_a_flipped_bit_is_found_with_its_weight_and_since_when(seen):
    first, other = (rank["flipped"] for rank in seen)
    assert first == other
    assert first == (
        "the replicas of ranks 0 and 1 do not hold equal weights: mlp.linear_fc2.weight (layer 2 of 2). No majority of "
        "them is equal, so the wrong one is unknown.\n"
        "Found after iteration 10. They were equal after iteration 5: start again from a checkpoint up to there, "
        "without the faulty device (pretrain doctor tests each): it would compute or store wrong numbers again."
    )
