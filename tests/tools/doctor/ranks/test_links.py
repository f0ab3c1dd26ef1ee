"""Judgement of links and of ranks' speeds."""

import json
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pretrain.plugins.backend import Figures
from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.ranks.links import (
    bandwidth,
    groups_of,
    judge_links,
    neighbour_rounds,
    rounds_of_pairs,
    schedule,
)
from pretrain.tools.doctor.ranks.status_board import Mark
from pretrain.tools.doctor.ranks.steps import judge_speed
from recipe.smallest import SMALLEST

MIB = 1 << 20
ALL = {"all ranks": ((0, 1, 2, 3),)}
PLACES = {rank: Mark(1, "links", rank // 2, "ab"[rank // 2], 100) for rank in range(4)}


def times(reduce=1e-3, pairs=None, unequal=()):
    """Times of a rank: an all-reduce of 16 MiB takes `reduce`; `pairs` are those of 8 MiB."""
    of_sizes = {"4096": 1e-5, str(16 * MIB): reduce}
    return {
        "collectives": {"all ranks": {"all-reduce": of_sizes}},
        "pairs": {str(other): {"4096": 1e-5, str(8 * MIB): each} for other, each in (pairs or {}).items()},
        "unequal": list(unequal),
    }


def test_bandwidth_counts_what_each_rank_sends():
    assert bandwidth("all-reduce", 4, 1000, 0.5) == 2 * 0.75 * 1000 / 0.5
    assert bandwidth("all-gather", 4, 1000, 0.5) == 0.75 * 1000 / 0.5


def test_a_collective_far_below_the_datasheet_is_looked_at():
    rate = bandwidth("all-reduce", 4, 16 * MIB, 1e-3)
    answers = {rank: times() for rank in range(4)}
    for stated, verdict in ((None, Verdict.OK), (2 * rate, Verdict.OK), (3 * rate, Verdict.LOOK)):
        (found,) = judge_links(answers, ALL, PLACES, Figures(node_bandwidth=stated, link_bandwidth=1e15))
        assert found.verdict is verdict
    assert found.text == "all ranks: 25.17 GB/s at 16 MiB (datasheet 75 GB/s), 10 us at 4 KiB"


def test_of_several_groups_one_that_is_twice_as_slow_is_named():
    groups = tuple((2 * first, 2 * first + 1) for first in range(3))
    places = {rank: Mark(1, "links", 0, "a", 100) for rank in range(6)}
    slow = {rank: times(5e-3 if rank >= 4 else 1e-3) for rank in range(6)}
    (found,) = judge_links(slow, {"all ranks": groups}, places, Figures())
    assert (found.verdict, found.ranks) == (Verdict.LOOK, (4, 5))
    assert "slowest ranks 4-5" in found.text


def test_the_slowest_pair_is_named_of_those_alike():
    """Links between nodes are slower than those inside one, which is no fault."""
    of_pairs = {0: {1: 1e-4, 2: 1e-3, 3: 1e-3}, 1: {2: 1e-3, 3: 9e-3}, 2: {3: 1e-4}, 3: {}}
    answers = {rank: times(pairs=pairs) for rank, pairs in of_pairs.items()}
    _, inside, across = judge_links(answers, ALL, PLACES, Figures())
    assert (inside.verdict, across.verdict) == (Verdict.OK, Verdict.LOOK)
    assert across.ranks == (1, 3)
    assert "slowest ranks 1 (host a) and 3 (host b), 0.93 GB/s" in across.text


def test_a_wrong_result_is_wrong():
    answers = {rank: times(unequal=["all-reduce, all ranks"] if rank > 1 else []) for rank in range(4)}
    found = judge_links(answers, ALL, PLACES, Figures())[0]
    assert (found.verdict, found.ranks) == (Verdict.WRONG, (2, 3))
    assert found.text == "all-reduce, all ranks: a wrong result on ranks 2-3"


def test_a_rank_over_a_tenth_slower_than_the_median_is_named():
    alike = {rank: {"256": 1e-4, "512": 1e-3} for rank in range(3)}
    for slowness, verdict in ((1.05, Verdict.OK), (1.2, Verdict.LOOK)):
        (found,) = judge_speed(alike | {3: {"256": 1e-4, "512": slowness * 1e-3}})
        assert found.verdict is verdict
    assert found.ranks == (3,)
    assert "20 % longer than the median of 4 ranks" in found.text
    assert judge_speed({0: {"256": 1e-4}}) == []


def test_speeds_are_compared_at_the_largest_size_that_all_have():
    (found,) = judge_speed({0: {"256": 1e-4, "512": 1e-3}, 1: {"256": 5e-3}, 2: {"256": 1e-4, "512": 1e-3}})
    assert found.text.startswith("rank 1: a matmul of 256 x 256 takes 5.00 ms")


@pytest.mark.parametrize("missing", [{0}, {1}, {2}, {3}, {0, 1}, {1, 2}, {0, 1, 2, 3}])
def test_what_was_measured_is_judged_where_ranks_did_not_answer(missing):
    """Groups without a measuring rank are left out; so are pairs with a rank of which nothing is known."""
    of_pairs = {0: {1: 1e-4, 2: 1e-3, 3: 1e-3}, 1: {2: 1e-3, 3: 1e-3}, 2: {3: 1e-4}, 3: {}}
    kinds = {**ALL, "tensor groups": ((0, 1), (2, 3))}
    answers = {rank: times(pairs=pairs) for rank, pairs in of_pairs.items() if rank not in missing}
    for each in answers.values():
        each["collectives"]["tensor groups"] = each["collectives"]["all ranks"]
    found = judge_links(answers, kinds, PLACES, Figures())
    measured = [group for group in kinds["tensor groups"] if not missing.issuperset(group)]
    assert len([each for each in found if each.check == "all-reduce"]) == (1 + bool(measured) if answers else 0)
    known = {rank: place for rank, place in PLACES.items() if rank not in missing}
    pairs = [each.text for each in judge_links(answers, kinds, known, Figures()) if each.check == "point-to-point"]
    assert all(f" {rank} (host" not in text for rank in missing for text in pairs)


def recipe_of(tensor, stages):
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": stages}
    return make_recipe(SMALLEST, [f"parallel.{key}={value}" for key, value in sizes.items()])


def test_groups_are_numbered_as_megatron_core_does():
    assert groups_of(recipe_of(2, 2), 8) == {
        "all ranks": ((0, 1, 2, 3, 4, 5, 6, 7),),
        "tensor groups": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "data groups": ((0, 2), (1, 3), (4, 6), (5, 7)),
    }


def test_groups_that_share_sequences_are_between_tensor_and_data():
    sizes = ["parallel.tensor_model_parallel_size=2", "parallel.context_parallel_size=2"]
    assert groups_of(make_recipe(SMALLEST, sizes), 8) == {
        "all ranks": ((0, 1, 2, 3, 4, 5, 6, 7),),
        "tensor groups": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "context groups": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "data groups": ((0, 2, 4, 6), (1, 3, 5, 7)),
    }


def test_ranks_that_share_experts_are_neighbours_and_all_ranks_may_be_them():
    experts = {"model.num_experts": 4, "model.add_bias_linear": False, "parallel.expert_model_parallel_size": 2}
    recipe = make_recipe(SMALLEST, [f"{key}={json.dumps(value)}" for key, value in experts.items()])
    assert groups_of(recipe, 4) == {"all ranks": ((0, 1, 2, 3),), "expert groups": ((0, 1), (2, 3))}
    assert groups_of(recipe, 2) == {"all ranks": ((0, 1),), "expert groups": ((0, 1),)}


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (4, 1), (1, 2)])
def test_groups_of_one_rank_or_of_all_are_left_out(tensor, stages):
    kinds = groups_of(recipe_of(tensor, stages), 4)
    assert set(kinds) == ({"all ranks", "data groups"} if stages == 2 else {"all ranks"})


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
