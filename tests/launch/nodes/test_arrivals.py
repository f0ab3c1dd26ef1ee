"""Order and number of the nodes of an attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RecipeError
from pretrain.launch.nodes.arrivals import Arrival, in_order, largest_fitting

PLACES = st.lists(st.one_of(st.none(), st.integers(-1, 9)), max_size=10)


def nodes(*places):
    return [
        Arrival(number=number, place=place, ranks=1, host=f"host-{number}") for number, place in enumerate(places, 1)
    ]


def numbers(*places, count):
    return [node.number for node in in_order(nodes(*places), count)]


def test_nodes_keep_their_places_and_new_ones_take_the_vacant():
    assert numbers(0, None, 2, count=3) == [1, 2, 3]
    assert numbers(None, 2, 0, count=3) == [3, 1, 2]
    assert numbers(2, 0, count=3) == [2, 1]


def test_of_two_nodes_with_one_place_the_first_has_it():
    assert numbers(0, 1, 1, count=2) == [1, 2]
    assert numbers(0, 1, 1, count=3) == [1, 2, 3]


@given(places=PLACES, count=st.integers(1, 8))
def test_as_many_nodes_as_there_is_room_for_take_part_and_node_0_is_one(places, count):
    order = in_order(nodes(0, *places), count)
    assert len(order) == len(set(order)) == min(count, 1 + len(places))
    assert order[0].number == 1


def divides(batch):
    def check(ranks):
        if batch % ranks:
            raise RecipeError(f"{ranks} ranks do not fit")

    return check


def test_as_many_nodes_take_part_as_fit_the_layout():
    assert largest_fitting([8, 8, 8], 1, divides(64)) == 2
    assert largest_fitting([8, 8, 8], 1, divides(48)) == 3
    with pytest.raises(RecipeError, match="24 ranks do not fit"):
        largest_fitting([8, 8, 8], 3, divides(64))
