"""Ranks that save beside their steps agree on the checkpoint, on its errors, and on when they learn of them."""

from __future__ import annotations

import pytest

from checkpoint import full_disk, saving_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each of two ranks saw."""
    return saving_ranks.run(tmp_path_factory.mktemp("saving"))


@pytest.fixture(scope="module")
def seen_further(tmp_path_factory):
    """What each saw of further layouts."""
    return saving_ranks.run(tmp_path_factory.mktemp("further"), "LAYOUTS_FULL")


@pytest.mark.parametrize("layout", saving_ranks.LAYOUTS)
def test_it_equals_bit_for_bit_what_is_written_at_once_and_the_run_resumes_from_it(seen, layout):
    check(seen, layout)


@pytest.mark.full
@pytest.mark.parametrize("layout", saving_ranks.LAYOUTS_FULL)
def test_so_it_does_in_further_layouts(seen_further, layout):
    check(seen_further, layout)


@pytest.mark.parametrize("layout", saving_ranks.LAYOUTS)
def test_the_copies_on_two_nodes_are_read_while_one_node_or_the_other_has_them(seen, layout):
    check_copies(seen, layout)


@pytest.mark.full
@pytest.mark.parametrize("layout", saving_ranks.LAYOUTS_FULL)
def test_so_they_are_in_further_layouts(seen_further, layout):
    check_copies(seen_further, layout)


def check_copies(seen, layout):
    for rank in seen:
        assert rank[layout]["copied"] == {
            "problems": [None, None],
            "whole": [4, True],
            "node 1 lost": [4, True],
            "damaged": [3, True],  # the copy before
            "held after": ["0000003"],  # what the next save keeps
            "told": ["The nodes' copies of iteration 4 were left out: rank 0 has no whole one."],
            "damaged, with a peer's": [4, True],
            "gone back before": None,
            "later checkpoint": None,
            "no room": "[Errno 27] File too large",
            "no room for the peer's": "[Errno 28] No space left on device",
            "own is not read": "[Errno 5] Input/output error",
            "of another number": False,
            "left": None,
            "a part lost": [None, ["is missing."]],
        }


def check(seen, layout):
    for rank in seen:
        assert rank[layout]["differing"] == []
        assert rank[layout]["resumed"] == rank[layout]["beside"]
        assert rank[layout]["told"] == 1


def test_a_full_disk_of_one_rank_ends_all_at_the_same_step(seen):
    first, other = (rank["full disk"] for rank in seen)
    assert first == other
    assert full_disk.MESSAGE in first["problem"]
    assert first["problem"].endswith("\nFree disk space, or set checkpoint.save to another folder.")
    assert first["left"] == [1, [1], True]


def test_an_error_of_one_rank_waits_for_the_checkpoint_though_the_others_are_in_a_step(seen):
    assert [rank["error"]["latest"] for rank in seen] == [None, 1]
    assert [rank["error"]["told"] for rank in seen] == [1, 1]
