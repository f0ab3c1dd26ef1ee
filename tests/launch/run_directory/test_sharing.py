"""A node and the run directory that rank 0, a process of another host, has made."""

import json
import socket
from contextlib import ExitStack

import pytest

from pretrain.errors import RunError
from pretrain.launch.run_directory import preparation, sharing
from pretrain.launch.run_directory.preparation import Prepared, prepare_together
from pretrain.launch.world import World

FIRST = ("host-a", 4242)
SECOND_NODE = World(
    rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1, master_addr="host-a", master_port=1
)


@pytest.fixture
def join(tmp_path, monkeypatch):
    """The first rank of the second node, when rank 0 has decided for `run` in the folder of the test."""
    decision = json.dumps([str(tmp_path / "run"), False, *FIRST])
    monkeypatch.setattr(preparation, "first_rank_decides", lambda *_: decision)
    monkeypatch.setattr(sharing, "_TIMEOUT", 0.0)
    with ExitStack() as lock:
        yield lambda: prepare_together(None, None, SECOND_NODE, lock, "no")


def hold(run_dir, host, process, **more):
    run_dir.mkdir(exist_ok=True)
    (run_dir / ".lock").write_text(json.dumps({"host": host, "process": process, "beat": 3, **more}))


def test_a_node_that_sees_the_directory_of_rank_0_goes_on(join, tmp_path):
    hold(tmp_path / "run", *FIRST)
    assert join() == Prepared(tmp_path / "run", resume=False)
    hold(tmp_path / "run", *FIRST, released=True)  # rank 0 has trained already
    assert join() == Prepared(tmp_path / "run", resume=False)


@pytest.mark.parametrize("here", ["no directory", "an empty one", "one of another run", "what another run has left"])
def test_a_node_that_does_not_see_it_is_named_with_the_directory(join, tmp_path, here):
    if here == "an empty one":
        (tmp_path / "run").mkdir()
    if here == "one of another run":
        hold(tmp_path / "run", "host-b", 4242)
    if here == "what another run has left":
        hold(tmp_path / "run", "host-a", 4241, released=True)
    with pytest.raises(RunError) as raised:
        join()
    first, second = str(raised.value).splitlines()
    assert first == f"{socket.gethostname()} does not see the run directory {tmp_path}/run that rank 0 uses on host-a."
    assert "--run-dir" in second
