"""Faults of real trainings; the command with all of them is in `make test-all`."""

from __future__ import annotations

import json
import signal
import tempfile

import pytest

from chaos.all_faults import AllFaults
from chaos.command import command, try_faults
from chaos.fault_list import faults_of
from chaos.tiny_training import TinyTraining
from pretrain.tools.doctor.finding import Finding, Verdict


def named(*names):
    return tuple(fault for fault in faults_of(2) if fault.name in names)


@pytest.mark.ranks
@pytest.mark.full
@pytest.mark.usefixtures("forked_python")
def test_a_training_comes_through_a_killed_rank_and_a_damaged_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    training = TinyTraining(folder=tmp_path, backend="cpu", nproc=2)
    training.prepare()
    faults = named("kill -9 of a rank", "newest checkpoint truncated")
    # Forked processes show the variables of the one that they are forked from, as on a system that shows none, which
    # is a finding where the first training lasts long enough to be looked for.
    undisturbed, *unseen, killed, truncated = AllFaults(training=training, faults=faults, one_node="").run()
    assert [(finding.check, finding.verdict) for finding in unseen] in ([], [("processes", Verdict.LOOK)])
    assert {undisturbed.verdict, killed.verdict, truncated.verdict} == {Verdict.OK}
    assert killed.text.startswith(
        "went on by itself after 1 restart (rank 1 failed: It was killed by SIGKILL); 2 steps repeated; "
    )
    assert truncated.text.startswith("ended with: ")
    assert " after what the message says, the same command went on; 7 steps repeated; " in truncated.text
    assert list(training.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recipe.yml"], "unexpected extra argument"),
        (["--nnodes", "2"], "No such option"),
        (["--nproc", "1"], "at least 2 ranks, here 1"),
        (["--backend", "abacus"], "backend 'abacus' is not installed"),
        (["--folder", "/absent"], "--folder /absent: no folder can be made there"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert said in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_rank_of_another_launcher_is_sent_to_the_batch_script(monkeypatch, capsys):
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(SystemExit) as ended:
        command([])
    assert ended.value.code == 2
    assert "Call it once, in the batch script" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_what_was_found_until_then(number, tmp_path, monkeypatch, capsys):
    def run(_):
        yield Finding(check="undisturbed", verdict=Verdict.OK, text="well")
        signal.raise_signal(number)

    monkeypatch.setattr(AllFaults, "run", run)
    with pytest.raises(SystemExit) as ended:
        command(["--json", "--folder", str(tmp_path)])
    assert ended.value.code == 128 + number
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found["findings"]] == ["undisturbed", "faults"]
    assert not found["ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_hang_up_that_is_ignored_does_not_end_it(tmp_path, monkeypatch):
    """As under nohup."""

    def run(_):
        signal.raise_signal(signal.SIGHUP)
        yield Finding(check="undisturbed", verdict=Verdict.OK, text="well")

    monkeypatch.setattr(AllFaults, "run", run)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert try_faults(backend="cpu", nproc=2, folder=tmp_path, as_json=False) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
