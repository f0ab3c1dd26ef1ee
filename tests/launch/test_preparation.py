"""The run directory, resumed or new; one command that a scheduler repeats."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from pretrain.errors import CheckpointError, RunError
from pretrain.launch import job, start_checks
from pretrain.launch.job import PreparedRun, prepare_run
from pretrain.launch.run_directory import check_run_dir, new_run_dir
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


@pytest.fixture(autouse=True)
def no_inputs(monkeypatch):
    """Skip the check of token files."""
    monkeypatch.setattr(start_checks, "require_inputs", lambda *_: None)
    for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)


def prepare(run_dir, *overrides, resume="no"):
    with ExitStack() as lock:
        return prepare_run(make_recipe(SMALLEST, overrides), run_dir, lock, resume)


def begin(run_dir):
    run_dir.mkdir()
    (run_dir / "recipe.yml").touch()
    return run_dir


def test_resume_auto_starts_a_run_where_there_is_none_and_continues_it_later(tmp_path):
    run_dir = tmp_path / "run"
    assert prepare(run_dir, resume="auto") == PreparedRun(run_dir, resume=False)
    begin(run_dir)
    assert prepare(run_dir, resume="auto") == PreparedRun(run_dir, resume=True)


def test_resume_auto_continues_a_run_that_ended_before_its_recipe_was_written(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    assert prepare(tmp_path, resume="auto").resume


def test_resume_auto_needs_a_run_directory(tmp_path):
    with pytest.raises(RunError, match="--resume auto needs a folder that is the same each time: pass --run-dir DIR"):
        prepare(None, resume="auto")


def test_a_run_that_began_and_ended_while_another_took_the_lock_is_seen(tmp_path, monkeypatch):
    """Two commands begin at once: the slower one looks into the directory before the other has written anything."""
    run_dir = tmp_path / "run"
    lock_of_run = job.held

    def begun_meanwhile(folder):
        begin(folder)
        return lock_of_run(folder)

    monkeypatch.setattr(job, "held", begun_meanwhile)
    with pytest.raises(RunError, match="already holds a run"):
        prepare(run_dir)
    (run_dir / "recipe.yml").unlink()
    (run_dir / ".lock").unlink()
    run_dir.rmdir()
    assert prepare(run_dir, resume="auto") == PreparedRun(run_dir, resume=True)


def test_a_restart_by_torchrun_continues(tmp_path, monkeypatch):
    run_dir = begin(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(RunError, match="already holds a run"):
        prepare(run_dir)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert prepare(run_dir) == PreparedRun(run_dir, resume=True)
    assert prepare(tmp_path / "other") == PreparedRun(tmp_path / "other", resume=False)  # it had not begun


def test_a_run_that_torchrun_may_restart_must_be_found_again(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(RunError, match=r"each start needs the same folder\.\nPass --run-dir DIR"):
        prepare(None)


def test_another_runs_folder_of_checkpoints_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "other" / "iter_0000010").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="another run: 10"):
        prepare(tmp_path / "run", f"checkpoint.save={tmp_path / 'other'}")
    assert not (tmp_path / "run").exists()
    assert [entry.name for entry in (tmp_path / "other").iterdir()] == ["iter_0000010"]


@pytest.fixture
def other_process():
    """Try the lock in another process: a process can always take its own POSIX locks."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom pretrain.launch.run_lock import held\n"
        "with held(Path(sys.argv[1])): pass"
    )

    def enters(folder):
        done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "is in use" in done.stderr
        return done.returncode == 0

    return enters


def test_a_new_run_directory_is_held_too_and_not_left_behind_empty(tmp_path, monkeypatch, other_process):
    monkeypatch.chdir(tmp_path)
    with ExitStack() as lock:
        run_dir = prepare_run(make_recipe(SMALLEST), None, lock, "no").run_dir
        assert not other_process(run_dir)
    assert not run_dir.exists()
    with ExitStack() as lock:
        run_dir = prepare_run(make_recipe(SMALLEST), None, lock, "no").run_dir
        (run_dir / "recipe.yml").touch()
    assert other_process(run_dir)


def test_a_run_that_saves_into_another_run_directory_locks_it(tmp_path, other_process):
    """The run that saves there by default locks only its directory, so the other one must lock that too."""
    first, folder = begin(tmp_path / "first"), tmp_path / "first" / "checkpoints"
    (folder / "iter_0000010").mkdir(parents=True)
    both = make_recipe(SMALLEST, [f"checkpoint.save={folder}", f"checkpoint.load={folder}"])
    with ExitStack() as lock:
        prepare_run(make_recipe(SMALLEST), first, lock, "run")
    with ExitStack() as lock:
        prepare_run(both, tmp_path / "second", lock, "no")
        assert not other_process(first)
        assert not other_process(folder)
    assert other_process(first)


def test_a_new_run_may_use_a_directory_that_is_absent_or_empty(tmp_path):
    check_run_dir(tmp_path / "absent", "no")
    check_run_dir(tmp_path, "no")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["recipe.yml", "metrics.jsonl", "checkpoints"])
def test_a_new_run_is_refused_in_the_directory_of_another(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(RunError, match=rf"already holds a run \({name}\)\.\nPass --resume .* or another --run-dir"):
        check_run_dir(tmp_path, "no")


def test_a_directory_with_a_run_can_be_resumed(tmp_path):
    (tmp_path / "recipe.yml").touch()
    check_run_dir(tmp_path, "run")


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(RunError, match="holds no run to resume"):
        check_run_dir(tmp_path, "run")


def test_resuming_needs_a_directory_and_the_latest_is_proposed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"pass --run-dir DIR\.$"):
        check_run_dir(None, "run")
    (tmp_path / "runs/tiny-1").mkdir(parents=True)
    (tmp_path / "runs/tiny-1/recipe.yml").touch()
    with pytest.raises(RunError, match="The latest here is runs/tiny-1"):
        check_run_dir(None, "run")


def test_a_file_is_not_a_run_directory(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(RunError, match="not a directory"):
        check_run_dir(tmp_path / "run", "no")


def test_runs_of_one_second_get_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = {new_run_dir("tiny") for _ in range(3)}
    assert len(made) == 3
    assert all(run_dir.is_dir() and run_dir.parent.name == "runs" for run_dir in made)
    assert all(run_dir.name.startswith("tiny-20") for run_dir in made)
