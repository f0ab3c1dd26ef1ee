"""Ranks of neighbouring nodes keep each other's files: the direction shows with three nodes, not with two."""

from __future__ import annotations

import pytest

from checkpoint import peers_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each of three nodes' ranks saw."""
    return peers_ranks.run(tmp_path_factory.mktemp("peers"))


def test_each_node_keeps_the_file_of_the_one_before(seen):
    assert [rank["owners"] for rank in seen] == [[0, 2], [1, 0], [2, 1]]
    assert [rank["passed on"] for rank in seen] == [[None, "of rank 222"], [None, "of rank 0"], [None, "of rank 11"]]


def test_the_next_node_gives_a_file_back_to_the_one_that_lacks_it(seen):
    assert [rank["back"] for rank in seen] == [[None, None], [None, "of rank 11"], [None, None]]
    assert [rank["numbers of next"] for rank in seen] == [[11, 20], [12, 20], [10, 20]]


def test_the_newest_of_all_is_what_every_rank_has(seen):
    assert [rank["newest"] for rank in seen] == [[20, -1]] * 3


def test_nodes_of_unequal_numbers_of_ranks_are_refused(seen):
    for rank in seen:
        assert rank["unequal"].startswith("checkpoint.local_interval: nodes have from 1 to 2 ranks.\n")
