"""A training on the hosts of a hostfile, reached by a fake pdsh; both hosts are this machine."""

import signal
import sys
from pathlib import Path

import pytest

from e2e.conftest import latest, metrics, pretrain, tiny
from e2e.test_run import kill_after
from launch.conftest import FAKE
from pretrain.exit_codes import ExitCode
from pretrain.launch.world import free_port

FAKES = Path(__file__).parents[1] / "launch"
KEYS = ("iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate")


@pytest.fixture
def hostfile(tmp_path, monkeypatch):
    """Two hosts with one rank each, and programs on the PATH that reach them."""
    for name in ("pdsh", "ssh"):
        (tmp_path / name).write_text(f"#!{sys.executable}\n{FAKE.format(folder=str(FAKES))}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    (tmp_path / "hosts").write_text("host-a slots=1\nhost-b slots=1\n")
    return tmp_path / "hosts"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
@pytest.mark.ranks
def test_a_run_on_two_hosts_stops_and_goes_on_as_one_that_starts_its_own_ranks(hostfile, text_tokens, tmp_path):
    own, hosted = tmp_path / "own", tmp_path / "hosted"
    longer = ("train.train_iters=2000", "checkpoint.save_interval=10000")  # the nodes poll once a second
    arguments = [*tiny(text_tokens, hosted, *longer), "--hostfile", hostfile]
    assert kill_after(arguments, hosted, iteration=3, number=signal.SIGINT) == ExitCode.SAVED
    stopped = latest(hosted)
    assert 3 <= stopped < 1900
    end = ("--set", f"train.exit_interval={stopped + 10}")
    printed = pretrain(*arguments, *end, "--resume")
    assert f"run directory: {hosted} (checkpoints," in printed
    pretrain(*tiny(text_tokens, own, *longer), *end, "--nproc", "2")
    assert [[row.get(key) for key in KEYS] for row in steps(hosted)] == [
        [row.get(key) for key in KEYS] for row in steps(own)
    ]
    assert len(steps(own)) == stopped + 10


def steps(run_dir):
    """Return the logged iterations; where a run stops it evaluates nothing."""
    return [record for record in metrics(run_dir) if record["kind"] == "train"]
