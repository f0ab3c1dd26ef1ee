"""One run: its files, and that stopping and resuming changes nothing."""

import json
import os
import signal
import subprocess
import time

import pytest

from e2e.conftest import PRETRAIN, ROOT, latest, metrics, pretrain, tiny
from forked_python.client import STARTED
from pretrain.exit_codes import ExitCode

TRAIN_KEYS = {
    *("kind", "iteration", "consumed_samples", "consumed_tokens", "lm_loss", "grad_norm", "learning_rate"),
    *("loss_scale", "global_batch_size", "skipped_iterations", "nan_iterations", "seconds_per_iteration"),
    *("samples_per_second", "tokens_per_second_per_device", "tflops_per_device", "mfu", "memory_peak_bytes"),
}
pytestmark = [pytest.mark.usefixtures("forked_python"), pytest.mark.xdist_group("one run")]
REPRODUCED = ("iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate")


@pytest.fixture(scope="module")
def whole_run(text_tokens, tmp_path_factory):
    """A run of 40 iterations in one piece, with what it printed; its processes are those of a user, not forked."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", STARTED)
        return run_dir, pretrain(*tiny(text_tokens, run_dir))


def numbers(run_dir):
    return [[record.get(key) for key in REPRODUCED] for record in metrics(run_dir)]


def test_a_run_directory_is_complete(whole_run):
    run_dir, _ = whole_run
    assert {"recipe.yml", "environment.json", "metrics.jsonl", "tensorboard", "checkpoints", "report.html"} <= {
        entry.name for entry in run_dir.iterdir()
    }
    assert latest(run_dir) == 40
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["backend"]["name"] == "cpu"
    assert {row["operation"] for row in environment["kernels"]["rows"]} >= {"attention", "norm", "optimizer", "linear"}
    assert list((run_dir / "tensorboard").glob("events.*"))


def test_every_line_of_metrics_has_every_key(whole_run):
    run_dir, _ = whole_run
    records = metrics(run_dir)
    assert [record["iteration"] for record in records if record["kind"] == "train"] == list(range(1, 41))
    assert all(set(record) == TRAIN_KEYS for record in records if record["kind"] == "train")
    assert [(record["split"], record["iteration"]) for record in records if record["kind"] == "eval"] == [
        ("valid", 20),
        ("valid", 40),
        ("test", 40),
    ]


def test_the_model_learns_and_says_so(whole_run):
    run_dir, printed = whole_run
    losses = [record["lm_loss"] for record in metrics(run_dir) if record["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    for expected in ("unigram entropy of the corpus", "attention", "the model continues: ab cd", str(run_dir)):
        assert expected in printed


@pytest.mark.full
def test_the_resolved_recipe_is_the_same_run(whole_run, tmp_path):
    run_dir, _ = whole_run
    again = tmp_path / "again"
    pretrain("--backend", "cpu", run_dir / "recipe.yml", "--run-dir", again, "--set", "train.exit_interval=5")
    assert numbers(again) == numbers(run_dir)[:5]


@pytest.mark.full
def test_forty_iterations_equal_twenty_and_twenty_resumed(whole_run, text_tokens, tmp_path):
    run_dir, _ = whole_run
    halves = tmp_path / "halves"
    pretrain(*tiny(text_tokens, halves, "train.exit_interval=20"))
    assert latest(halves) == 20
    lines = (halves / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert '"eval"' in lines.pop()  # as if it had been killed after the checkpoint, in the evaluation
    (halves / "metrics.jsonl").write_text("".join(lines))
    pretrain(*tiny(text_tokens, halves), "--resume")
    assert numbers(halves) == numbers(run_dir)


def test_a_killed_run_resumes_from_its_last_checkpoint(whole_run, text_tokens, tmp_path):
    run_dir, _ = whole_run
    killed = tmp_path / "killed"
    kill_after(tiny(text_tokens, killed, "checkpoint.save_interval=1"), killed, iteration=8, number=signal.SIGKILL)
    assert 3 <= latest(killed) < 40
    pretrain(*tiny(text_tokens, killed), "--resume")
    assert numbers(killed) == numbers(run_dir)


def test_sigterm_saves_and_exits_with_the_code_that_says_so(whole_run, text_tokens, tmp_path):
    run_dir, _ = whole_run
    stopped = tmp_path / "stopped"
    code = kill_after(tiny(text_tokens, stopped), stopped, iteration=6, number=signal.SIGTERM)
    assert code == ExitCode.SAVED
    done = numbers(stopped)[-1][0]
    assert latest(stopped) == done
    steps = [[record.get(key) for key in REPRODUCED] for record in metrics(run_dir) if record["kind"] == "train"]
    assert [row for row in numbers(stopped) if row[1] is not None] == steps[:done]


def kill_after(arguments, run_dir, *, iteration, number):
    """Start a run, send it a signal once it has logged the iteration, and return its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*PRETRAIN, *map(str, arguments)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        file = run_dir / "metrics.jsonl"
        if file.exists() and file.read_bytes().count(b"\n") >= iteration:
            break
        time.sleep(0.02)
    else:
        process.kill()
        pytest.fail(f"iteration {iteration} was not reached")
    process.send_signal(number)
    return process.wait(300)
