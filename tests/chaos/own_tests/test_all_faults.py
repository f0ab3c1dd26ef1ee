"""All faults in turn: which are tried again, what noise excuses, and what is kept."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from chaos.all_faults import TRIES, AllFaults, undisturbed_finding, work_folder
from chaos.fault_list import faults_of
from chaos.fault_outcome import FaultOutcome
from chaos.fault_trial import FaultTrial
from chaos.own_tests.test_judgement import BY_ITSELF, LOGGED, WENT_ON, changed, end
from chaos.planted import Kind
from chaos.tiny_training import ITERATIONS, RECIPE, SAVE_INTERVAL, TinyTraining
from pretrain.errors import RunError
from pretrain.recipe import load_recipe
from pretrain.tools.doctor.finding import Verdict

QUIET = FaultOutcome(came=True, ends=(end(),), states=WENT_ON.states, logged=LOGGED)


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Run faults whose trainings have prepared outcomes; return the findings and the names of the trainings."""

    def tried(outcomes, *faults, one_node=""):
        left, names = iter(outcomes), []

        def outcome_of(trial):
            names.append(trial._folder.name)
            return next(left)

        monkeypatch.setattr(FaultTrial, "run", outcome_of)
        training = TinyTraining(folder=tmp_path, backend="cpu", nproc=2)
        return list(AllFaults(training=training, faults=faults, one_node=one_node).run()), names

    return tried


def verdicts(findings):
    return [finding.verdict for finding in findings]


def test_the_numbers_are_those_of_the_recipe():
    recipe = load_recipe(RECIPE)
    assert (recipe.train.train_iters, recipe.checkpoint.save_interval) == (ITERATIONS, SAVE_INTERVAL)
    assert recipe.logging.log_interval == 1


def test_the_faults_of_the_issue_are_there_each_with_a_name_of_its_own():
    names = [fault.name for fault in faults_of(4)]
    assert len(set(names)) == len(names) == 14
    assert all(fault.endings[-1].exit_code == 0 for fault in faults_of(4))


def test_the_named_rank_is_the_disturbed_one():
    killed = next(fault for fault in faults_of(4) if fault.name == "kill -9 of a rank")
    assert killed.endings[0].missing("rank 3 failed:\nIt was killed by SIGKILL.") == []
    assert killed.endings[0].missing("rank 1 failed:\nIt was killed by SIGKILL.") != []


def test_a_fault_that_does_not_come_is_tried_again(tried):
    late = changed(WENT_ON, came=False)
    findings, names = tried([QUIET, late, late, WENT_ON], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.OK]
    assert names == ["undisturbed", "killed-1", "killed-2", "killed-3"]


def test_a_fault_that_never_comes_is_wrong(tried):
    findings, _ = tried([QUIET, *[changed(WENT_ON, came=False)] * TRIES], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.WRONG]


@pytest.mark.parametrize(
    "late",
    [{"ends": (end(1, "Boom"),)}, {"ends": (end(None),)}, {"ends": (end(left=(4711,)),)}, {"others": (end(1),)}],
)
def test_a_training_that_fails_before_its_fault_is_not_tried_again(tried, late):
    findings, names = tried([QUIET, changed(WENT_ON, came=False, **late), WENT_ON], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.WRONG]
    assert names == ["undisturbed", "killed-1"]


@pytest.mark.parametrize("again", [{"ends": (end(1, "Boom"),), "logged": ()}, {"logged": LOGGED[:-1]}])
def test_a_second_undisturbed_training_that_fails_excuses_nothing(tried, again):
    findings, _ = tried([QUIET, off(WENT_ON, 0.5), changed(QUIET, **again)], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.WRONG, Verdict.WRONG]
    assert "losses differ from the undisturbed ones" in findings[-1].text


def test_losses_of_a_device_that_gives_other_ones_each_time_cannot_be_judged(tried):
    findings, _ = tried([QUIET, off(WENT_ON, 0.5), off(QUIET, 0.5)], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.WRONG, Verdict.WRONG]
    assert findings[1].text.startswith("two undisturbed trainings differ by 0.3, 0.01 is the most;")


def test_processes_that_cannot_be_seen_are_told(tried):
    findings, _ = tried([changed(QUIET, seen=False)])
    assert verdicts(findings) == [Verdict.OK, Verdict.LOOK]
    assert findings[1].text.startswith("processes cannot be seen here: ")


def test_a_disk_is_left_out_where_none_can_be_full(tried, monkeypatch):
    monkeypatch.setattr("chaos.all_faults.without_full_disk", lambda _: "no links")
    findings, names = tried([QUIET], *(fault for fault in faults_of(2) if fault.planted is Kind.FULL_DISK))
    assert (findings[1].verdict, findings[1].text) == (Verdict.LOOK, "left out: no links")
    assert names == ["undisturbed"]


def test_without_an_undisturbed_training_none_is_disturbed(tried, tmp_path):
    findings, names = tried([changed(QUIET, ends=(end(2, "no device\n"),))], BY_ITSELF)
    assert verdicts(findings) == [Verdict.WRONG]
    assert "exit code 2" in findings[0].text
    assert "no device" in findings[0].text
    assert findings[0].remedy == f"The outputs are in {tmp_path}."
    assert names == ["undisturbed"]


def off(outcome, relative):
    return changed(outcome, logged=tuple((step, loss * (1 + relative), norm) for step, loss, norm in LOGGED))


def test_other_losses_are_excused_by_a_device_that_gives_them_undisturbed_too(tried):
    noisy = off(WENT_ON, 2e-6)
    other = dataclasses.replace(BY_ITSELF, name="killed again")
    findings, names = tried([QUIET, noisy, off(QUIET, 1e-6), noisy], BY_ITSELF, other)
    assert verdicts(findings) == [Verdict.OK] * 3
    assert names.count("undisturbed-again") == 1


def test_other_losses_are_wrong_where_the_device_gives_the_same_bits_twice(tried):
    findings, _ = tried([QUIET, off(WENT_ON, 1e-12), QUIET], BY_ITSELF)
    assert verdicts(findings) == [Verdict.OK, Verdict.WRONG]


def test_two_nodes_are_left_out_where_one_machine_cannot_be_both(tried):
    findings, names = tried([QUIET], dataclasses.replace(BY_ITSELF, nodes=2), one_node="they share devices")
    assert verdicts(findings) == [Verdict.OK, Verdict.LOOK]
    assert findings[1].text == "left out: they share devices"
    assert names == ["undisturbed"]


@pytest.mark.parametrize(
    "outcome",
    [
        changed(QUIET, ends=(end(None),)),
        changed(QUIET, ends=(end(left=(4711,)),)),
        changed(QUIET, ends=WENT_ON.ends),
        changed(QUIET, states=({5: ""},)),
        changed(QUIET, logged=()),
        changed(QUIET, logged=((1, float("nan"), 1.0), *LOGGED[1:])),
        changed(QUIET, flaws=("x is left",)),
    ],
)
def test_an_undisturbed_training_must_be_complete(outcome):
    assert undisturbed_finding(outcome).verdict is Verdict.WRONG


class TestTheFolder:
    def test_it_is_removed(self, tmp_path):
        with work_folder(tmp_path) as folder:
            TinyTraining(folder=folder, backend="cpu", nproc=2).prepare()
        assert list(tmp_path.iterdir()) == []

    def test_it_is_removed_at_an_interruption(self, tmp_path):
        with pytest.raises(KeyboardInterrupt), work_folder(tmp_path):
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []

    def test_it_has_a_whole_path_for_commands_in_other_folders(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs").mkdir()
        with work_folder(Path("runs")) as folder:
            assert folder.parent == tmp_path / "runs"

    def test_the_systems_folder_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        with pytest.raises(RunError, match=re.escape(f"{tmp_path}/absent: no folder")), work_folder(None):
            pass

    def test_one_that_cannot_be_removed_is_told(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with work_folder(tmp_path) as folder:
            pass
        assert capsys.readouterr().err == f"{folder} could not be removed.\n"

    def test_one_that_is_missing_is_a_user_error(self, tmp_path):
        with pytest.raises(RunError, match="no folder can be made there"), work_folder(tmp_path / "absent"):
            pass

    def test_outputs_of_a_wrong_finding_stay(self, tmp_path, monkeypatch):
        monkeypatch.setattr(FaultTrial, "run", lambda _: changed(QUIET, logged=()))
        with work_folder(tmp_path) as folder:
            training = TinyTraining(folder=folder, backend="cpu", nproc=2)
            assert verdicts(AllFaults(training=training, faults=(), one_node="").run()) == [Verdict.WRONG]
        assert folder.exists()
