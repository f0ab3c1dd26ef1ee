"""Several nodes: two launchers on this machine meet as two nodes would."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import LaunchError, RecipeError
from pretrain.launch.nodes.attempt import Arrival, in_order
from pretrain.launch.nodes.nodes import Nodes, largest_fitting
from pretrain.launch.processes.failure import Failure
from pretrain.launch.world import free_port

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rendezvous": "a:1"}, "no effect on one node"),
        ({"rank": 0}, "no effect on one node"),
        ({"count": 2}, "--rdzv HOST:PORT"),
        ({"count": 2, "rendezvous": "a:1", "rank": 2}, "not below --nnodes 2"),
        ({"count": 2, "rendezvous": "a:1", "rank": 3, "spares": 1}, r"not below --nnodes 2 plus --spares 1"),
        ({"spares": 1}, "--spares 1 has no effect on one node"),
        ({"external": True}, "--external-rdzv has no effect on one node"),
    ],
)
def test_settings_that_do_not_fit_are_errors(given, words):
    with pytest.raises(LaunchError, match=words):
        Nodes(**given)


@pytest.mark.parametrize("text", ["node0", ":1", "node0:", "node0:x", "node0:0", "node0:70000"])
def test_a_meeting_point_is_a_host_and_a_port(text):
    with pytest.raises(LaunchError, match="is not HOST:PORT"):
        Nodes(count=2, rendezvous=text).endpoint()


def test_a_meeting_point_may_be_an_ipv6_address():
    assert Nodes(count=2, rendezvous="[::1]:29500").endpoint() == ("::1", 29500)


def meet(ranks, sizes):
    """Let nodes meet and return their seats and the places of their ranks, in the order of `ranks`."""
    from pretrain.launch.nodes.rendezvous import Rendezvous

    endpoint = f"127.0.0.1:{free_port()}"

    def join(rank, size):
        rendezvous = Rendezvous(Nodes(count=len(ranks), rendezvous=endpoint, rank=rank))
        if rendezvous.leads:
            return rendezvous, rendezvous.begin(rendezvous.meet(size, lambda nodes, _: nodes))
        return rendezvous, rendezvous.join(size)[0]

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(join, ranks, sizes))


def test_nodes_with_numbers_get_their_places():
    (_, second), (_, first) = meet([1, 0], [1, 2])
    assert [(world.rank, world.local_rank, world.node_rank) for world in first] == [(0, 0, 0), (1, 1, 0)]
    assert [(world.rank, world.local_rank, world.node_rank) for world in second] == [(2, 0, 1)]
    assert {world.world_size for world in first + second} == {3}
    assert len({(world.master_addr, world.master_port) for world in first + second}) == 1


def test_nodes_without_numbers_are_counted_as_they_come():
    met = meet([None, None, None], [1, 1, 1])
    assert sorted(world.rank for _, worlds in met for world in worlds) == [0, 1, 2]


def test_a_node_number_is_taken_once():
    from pretrain.launch.nodes.rendezvous import Rendezvous

    nodes = Nodes(count=2, rendezvous=f"127.0.0.1:{free_port()}", rank=0)
    held = Rendezvous(nodes)
    with pytest.raises(LaunchError, match=r"the rendezvous failed|joined already"):
        Rendezvous(nodes)
    assert held.poll() is None


def test_a_node_that_lost_a_peer_shows_the_failure_of_the_node_that_caused_it():
    (here, _), (there, _) = meet([0, 1], [1, 1])
    assert here.poll() is None
    cause = Failure(rank=1, when=1.0, exit_code=1, text="out of memory")
    lost = Failure(rank=0, when=0.9, exit_code=1, text="connection closed", lost_peer=True)
    assert there.report(cause) == cause
    assert here.report(lost) == cause
    assert here.poll() == cause


@pytest.mark.usefixtures("forked_python")
def test_ranks_of_two_nodes_train_together(job, tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    given = job("sum_of_ranks", run_dir=None, prepared=False).to_json()
    command = [sys.executable, HERE / "launcher.py", "node", given, endpoint]
    nodes = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(node.communicate(timeout=300)[1], node.returncode) for node in nodes] == [("", 0), ("", 0)]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [(run_dir / f"{rank}.sum").read_text() for rank in range(2)] == ["1", "1"]


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
