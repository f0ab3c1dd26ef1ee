"""Groups of a recipe's ranks, and rounds of pairs."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pretrain.recipe import make_recipe
from pretrain.tools.doctor.ranks.link_times import groups_of, neighbour_rounds, rounds_of_pairs, schedule
from recipe.smallest import SMALLEST


def recipe_of(tensor, stages):
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": stages}
    return make_recipe(SMALLEST, [f"parallel.{key}={value}" for key, value in sizes.items()])


def test_groups_are_numbered_as_megatron_core_does():
    assert groups_of(recipe_of(2, 2), 8) == {
        "all ranks": ((0, 1, 2, 3, 4, 5, 6, 7),),
        "tensor groups": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "data groups": ((0, 2), (1, 3), (4, 6), (5, 7)),
    }


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (4, 1), (1, 2)])
def test_groups_of_one_rank_or_of_all_are_left_out(tensor, stages):
    kinds = groups_of(recipe_of(tensor, stages), 4)
    assert set(kinds) == ({"all ranks", "data groups"} if stages == 2 else {"all ranks"})


def test_without_a_recipe_there_is_the_group_of_all():
    assert groups_of(None, 3) == {"all ranks": ((0, 1, 2),)}


@given(some.integers(2, 40))
def test_in_rounds_every_pair_meets_once_and_nobody_twice_at_a_time(count):
    rounds = rounds_of_pairs(range(count))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    assert all(max(Counter(rank for pair in pairs for rank in pair).values()) == 1 for pairs in rounds)


@given(some.integers(2, 40), some.integers(1, 8))
def test_every_rank_meets_its_neighbour_in_few_rounds(count, distance):
    rounds = neighbour_rounds(range(count), distance)
    expected = {tuple(sorted((rank, (rank + distance) % count))) for rank in range(count) if distance % count}
    met = {pair for pairs in rounds for pair in pairs if pair[0] != pair[1]}
    assert met == expected
    assert len(rounds) <= 3
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds if met)


def test_many_ranks_measure_neighbours_and_a_pair_for_every_two_nodes():
    nodes = [node for node in range(8) for _ in range(8)]
    met = {pair for pairs in schedule(nodes) for pair in pairs}
    assert {(rank, rank + 1) for rank in range(63)} <= met
    assert {(8 * a, 8 * b) for a, b in combinations(range(8), 2)} <= met
    assert len(met) < 100
    assert len(schedule(list(range(200)))) < 30  # every pair would be 199 rounds
