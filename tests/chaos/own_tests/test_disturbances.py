"""Disturbances from outside: the right process is meant, and the damage is one that a training must find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chaos import disturbances
from chaos.planted import Kind, Planted
from chaos.scene import Scene
from chaos.tiny_training import ITERATIONS
from pretrain.checkpoint import checksums
from pretrain.checkpoint.folder import LATEST


class FakeCommand:
    """A command of which one process is known."""

    def __init__(self, process):
        self.process = process

    def has(self, process):
        return process == self.process.pid


@pytest.fixture
def scene(tmp_path):
    """A training with two intact checkpoints, whose last rank is a process that can be killed."""
    run_dir, signs = tmp_path / "run", tmp_path / "signs"
    signs.mkdir()
    for iteration in (5, 10):
        folder = run_dir / "checkpoints" / f"iter_{iteration:07d}"
        folder.mkdir(parents=True)
        (folder / "common.pt").write_bytes(b"c" * 10)
        (folder / "__0_0.distcp").write_bytes(bytes(range(256)))
        checksums.write(folder, {})
    planted = Planted(kind=Kind.GATE, rank=0, signs=signs, after=run_dir)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (signs / "rank-1").write_text(str(process.pid))
        yield Scene(run_dir=run_dir, planted=planted, ranks=2, commands=[FakeCommand(process)])
        process.kill()
        assert process.wait(60) in {-9, -15}


@pytest.mark.parametrize(
    ("damage", "found"),
    [(disturbances.truncate_newest, "128 bytes instead of 256"), (disturbances.flip_byte, "checksum")],
)
def test_damage_of_the_newest_checkpoint_is_found_by_its_checksums(scene, damage, found):
    assert scene.states() == {5: "", 10: ""}
    damage(scene)
    states = scene.states()
    assert states[5] == ""
    assert found in states[10]


@pytest.mark.parametrize("place", ["/runs", "/runs of my team/a b"])
def test_the_newest_intact_checkpoint_is_taken_as_the_message_says(scene, place):
    scene.checkpoints.path.joinpath(LATEST).write_text("10\n")
    scene.output = (
        f"x is damaged.\nThe newest intact checkpoint is iteration 5: write 5 into {place}/{LATEST}, and start again.\n"
    )
    disturbances.take_intact(scene)
    assert scene.checkpoints.latest() == 5


@pytest.mark.parametrize("output", ["x is damaged.", "write 5 into /etc/passwd, and start again."])
def test_a_message_without_that_advice_repairs_nothing(scene, output):
    (scene.checkpoints.path / LATEST).write_text("10\n")
    scene.output = output
    disturbances.take_intact(scene)
    assert scene.checkpoints.latest() == 10


def test_another_programs_process_is_not_killed(scene):
    (scene.planted.signs / "rank-0").write_text(str(os.getpid()))
    scene.said = {"workers": [os.getpid()]}
    for disturb in (disturbances.kill_first_rank, disturbances.kill_worker):
        with pytest.raises(LookupError):
            disturb(scene)


def test_a_launcher_that_ends_at_the_first_sigterm_has_no_second_one(scene):
    with pytest.raises(LookupError):
        disturbances.terminate_twice(scene)


def test_what_is_left_of_a_save_at_the_end_is_told(scene):
    tracker = scene.checkpoints.path / LATEST
    assert scene.flaws() == [f"{LATEST} names iteration None, not {ITERATIONS}"]
    tracker.write_text("10\n")
    (scene.checkpoints.path / ".unfinished-0000015").mkdir()
    (scene.run_dir / "metrics.jsonl").write_text('{"kind": "train", "iter')
    assert scene.flaws() == [
        "a line of metrics.jsonl is broken",
        f"{LATEST} names iteration 10, not {ITERATIONS}",
        "left in the folder of checkpoints: .unfinished-0000015",
    ]


def test_a_process_that_is_not_known_is_no_fault_that_came(scene):
    with pytest.raises(LookupError):
        disturbances.kill_first_rank(scene)
    scene.said = {"workers": []}
    with pytest.raises(LookupError):
        disturbances.kill_worker(scene)
