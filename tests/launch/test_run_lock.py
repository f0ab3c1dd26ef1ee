"""Only one run uses a folder: others are refused while it runs, and start without a wait after it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pretrain.errors import RunError
from pretrain.launch import job, run_lock
from pretrain.launch.job import PreparedRun, prepare_together
from pretrain.launch.run_lock import FILE, held, remove_unused
from pretrain.launch.world import World

TESTS = Path(__file__).parents[1]
ELSEWHERE = {"machine": "another", "host": "node7", "process": 12, "since": "2026-01-01 00:00:00", "beat": 3}


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder; ended in the end."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.lock_holder", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def impatient(monkeypatch):
    """Wait for a fraction of a second instead of half a minute."""
    monkeypatch.setattr(run_lock, "PATIENCE", 0.5)


def never(text):
    pytest.fail(f"there is nothing to wait for: {text}")


def record(folder):
    return json.loads((folder / FILE).read_text())


def test_a_locked_folder_is_refused_with_its_holder(holder, tmp_path):
    before = record(tmp_path)
    with pytest.raises(RunError) as caught, held(tmp_path, never):
        pass
    first, second = str(caught.value).splitlines()
    assert first == f"{tmp_path} is in use by process {holder.pid} on {before['host']}, since {before['since']}."
    assert second.startswith("Wait until it ends, stop it")
    with pytest.raises(RunError), held(tmp_path, never):  # the first refusal did not release the lock
        pass


def test_a_run_that_is_refused_leaves_the_lock_of_the_other_where_it_is(holder, tmp_path):
    """Both have seen that there is no folder; the one that comes second must not remove what the first has made."""
    with pytest.raises(RunError), held(tmp_path, never, just_made=True):
        pass
    assert record(tmp_path)["process"] == holder.pid
    with pytest.raises(RunError), held(tmp_path, never):
        pass


def test_a_file_that_is_removed_before_it_is_locked_is_not_the_lock(tmp_path, monkeypatch):
    real, left = run_lock._lock, [tmp_path / FILE]

    def removed_first(descriptor, folder):
        if left:
            left.pop().unlink()  # by a run that failed at its start
        return real(descriptor, folder)

    monkeypatch.setattr(run_lock, "_lock", removed_first)
    with held(tmp_path, never):
        assert record(tmp_path)["process"] == os.getpid()


def test_of_runs_that_begin_at_once_in_a_new_folder_one_holds_it_and_the_others_name_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "launch.lock_holder", str(tmp_path / "new" / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(4)]
    said = [process.stdout.readline() for process in processes]
    winner = said.index("held\n")
    assert said.count("held\n") == 1
    for process in processes[:winner] + processes[winner + 1 :]:
        assert "is in use" in process.communicate()[1]
    assert record(tmp_path / "new" / "run")["process"] == processes[winner].pid
    processes[winner].communicate("")


def test_the_lock_is_released_at_the_end_of_the_run(holder, tmp_path):
    holder.communicate("")
    assert record(tmp_path)["released"]
    assert run_lock.holder(tmp_path) == (record(tmp_path)["host"], holder.pid)
    with held(tmp_path, never):
        assert record(tmp_path)["process"] == os.getpid()
    assert run_lock.holder(tmp_path) == (record(tmp_path)["host"], os.getpid())


def test_the_lock_of_a_killed_run_is_released_at_once(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert record(tmp_path)["process"] == holder.pid
    with held(tmp_path, never):
        assert record(tmp_path)["process"] == os.getpid()


def test_a_run_that_was_killed_on_another_machine_is_watched_for_a_while(tmp_path, impatient):
    (tmp_path / FILE).write_text(json.dumps(ELSEWHERE))
    said = []
    with held(tmp_path, said.append):
        assert record(tmp_path)["process"] == os.getpid()
    (line,) = said
    assert line.startswith(f"{tmp_path}: process 12 on node7 did not release its lock; waiting ")


def test_a_run_on_another_machine_is_refused(holder, tmp_path, impatient, monkeypatch):
    """Where locks do not reach other machines, the heartbeat decides."""
    monkeypatch.setattr(run_lock.fcntl, "lockf", lambda *_: None)
    monkeypatch.setattr(run_lock, "machine", lambda: "another")
    with pytest.raises(RunError, match=f"in use by process {holder.pid} on "), held(tmp_path, lambda _: None):
        pass
    assert record(tmp_path)["process"] == holder.pid


def test_without_locks_the_heartbeat_decides_on_one_machine_too(holder, tmp_path, impatient, monkeypatch):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_lock.fcntl, "lockf", unsupported)
    with pytest.raises(RunError, match="in use"), held(tmp_path, lambda _: None):
        pass
    holder.kill()
    holder.wait()
    with held(tmp_path, lambda _: None):
        assert record(tmp_path)["process"] == os.getpid()


def test_the_holder_writes_heartbeats(holder, tmp_path):
    deadline, first = time.monotonic() + 60, record(tmp_path)["beat"]
    while record(tmp_path)["beat"] == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00" * 100])
def test_any_content_of_the_lock_file_is_accepted(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with held(tmp_path, never):
        pass


def test_a_run_that_fails_at_the_start_leaves_no_folder(tmp_path):
    with held(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    with held(tmp_path / "new"):
        (tmp_path / "new" / "recipe.yml").touch()
    assert (tmp_path / "new" / "recipe.yml").exists()


def test_a_folder_of_which_nothing_came_is_removed_with_a_lock_that_nobody_holds(tmp_path, holder):
    used, unused = tmp_path / "used", tmp_path / "unused"
    for folder in (used, unused):
        folder.mkdir()
        with held(folder):
            pass
    (used / "recipe.yml").touch()
    for folder in (used, unused, tmp_path):
        remove_unused(folder)
    assert (sorted(used.iterdir()), unused.exists()) == ([used / FILE, used / "recipe.yml"], False)
    (used / "recipe.yml").unlink()
    remove_unused(used)
    remove_unused(tmp_path)
    assert record(tmp_path)["process"] == holder.pid


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written: .*\nName another"), held(tmp_path / "file", never):
        pass


FIRST = ("host-a", 4242)
SECOND_NODE = World(
    rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1, master_addr="host-a", master_port=1
)


@pytest.fixture
def join(tmp_path, monkeypatch):
    """The first rank of the second node, when rank 0 has decided for `run` in the folder of the test."""
    decision = json.dumps([str(tmp_path / "run"), False, *FIRST])
    monkeypatch.setattr(job, "rank0_decides", lambda *_: decision)
    monkeypatch.setattr(run_lock, "_APPEARANCE_TIMEOUT", 0.0)
    with ExitStack() as lock:
        yield lambda: prepare_together(None, None, SECOND_NODE, lock, "no")


def hold(run_dir, host, process, **more):
    run_dir.mkdir(exist_ok=True)
    (run_dir / ".lock").write_text(json.dumps({"host": host, "process": process, "beat": 3, **more}))


def test_a_node_that_sees_the_directory_of_rank_0_goes_on(join, tmp_path):
    hold(tmp_path / "run", *FIRST)
    assert join() == PreparedRun(tmp_path / "run", resume=False)
    hold(tmp_path / "run", *FIRST, released=True)  # rank 0 has trained already
    assert join() == PreparedRun(tmp_path / "run", resume=False)


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
