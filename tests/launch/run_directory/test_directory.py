import pytest

from pretrain.errors import RunError
from pretrain.launch.run_directory.directory import check_run_dir, new_run_dir


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
