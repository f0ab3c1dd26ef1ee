"""Trainings of several ranks, one of which hangs: the report names rank, collective and place, and the run ends with 1.

Each runs in processes of its own, under the launcher that a user has.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import IndexPart, write_index
from pretrain.launch.job import Job
from pretrain.launch.world import free_port
from report.hang.faulty_training import ITERATION

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]

HERE = Path(__file__).parent
LAUNCHER = HERE.parents[1] / "launch" / "launcher.py"
RECIPE = {
    "model": {"num_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16},
    "tokenizer": {"type": "bytes"},
    "train": {"micro_batch_size": 1, "global_batch_size": 2, "train_iters": 400, "seed": 7},
    "optimizer": {"lr": 1e-3},
    "checkpoint": {"save_interval": 6},
    "evaluation": {"interval": 5, "iters": 1},
    "logging": {"log_interval": 1, "hang_after_seconds": 8},
}
TENSOR, PIPELINE = ["parallel.tensor_model_parallel_size=2"], ["parallel.pipeline_model_parallel_size=2"]
PIPELINE += ["model.num_layers=4"]
IN_LAYER_2 = f"layer 2 of 3, {{}}, iteration {ITERATION}"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Return the prefix of a token file of a hundred documents."""
    prefix = tmp_path_factory.mktemp("corpus") / "text"
    ids = np.arange(60_000, dtype="<u2") % 256
    bin_path(prefix).write_bytes(ids.tobytes())
    with idx_path(prefix).open("wb") as stream:
        write_index(stream, ids.dtype, [IndexPart(np.full(100, 600, "<i4"), np.arange(1, 101, dtype="<i8"))])
    return prefix


def hang(tmp_path, tokens, fault, overrides=(), *, backend="cpu", nproc=2, timeout=240, variables=None):
    """Run until the end; return exit code, output, and the files of the hang report."""
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(json.dumps({**RECIPE, "data": {"path": str(tokens), "split": "80,10,10", "num_workers": 0}}))
    run_dir = tmp_path / "run"
    job = Job(
        recipe=str(recipe),
        overrides=tuple(overrides),
        backend=backend,
        run_dir=str(run_dir),
        prepared=True,
        train="faulty_training:train",
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE), "FAULT": fault, "OMP_NUM_THREADS": "1", **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(LAUNCHER), "ranks", job.to_json(), str(nproc)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    reports = [path.read_text() for path in run_dir.glob("hang/*/report.txt")]
    return done.returncode, done.stdout + done.stderr, reports


def said(tmp_path, tokens, fault, *overrides, **options):
    """Return the sentences of a run that must hang, and show them."""
    code, output, reports = hang(tmp_path, tokens, fault, overrides, **options)
    assert (code, len(reports)) == (1, 1), output
    assert output.count("The run hangs") == 1, "shown once, by one rank"
    assert "Traceback" not in output
    return output[output.index("The run hangs") :]


def test_one_that_sleeps_in_its_backward_pass(tmp_path, tokens):
    text = said(tmp_path, tokens, "backward:1", *TENSOR)
    place = IN_LAYER_2.format("backward")
    assert f"rank 0 waits in all-reduce of group tp ({place}); rank 1 is not there: it is in {place}; " in text
    assert "faulty_training.py" in text


@pytest.mark.full
def test_one_that_is_stopped(tmp_path, tokens):
    """Rank 0, which serves the store of the process groups."""
    text = said(tmp_path, tokens, "stopped:0")
    assert f"rank 1 waits in all-reduce of group dp (gradient reduction, iteration {ITERATION}); rank 0 is not" in text
    assert "is stopped, by SIGSTOP or a debugger" in text
    assert f"it was last in {IN_LAYER_2.format('forward')}" in text


@pytest.mark.full
def test_one_that_is_killed_is_named_with_its_last_place(tmp_path, tokens):
    code, output, reports = hang(tmp_path, tokens, "killed:1")
    assert (code, reports) == (1, [])
    assert "rank 1 failed:\nIt was killed by SIGKILL." in output
    assert f"It was last in layer 2, forward, iteration {ITERATION}." in output


@pytest.mark.full
class TestFull:
    """The other ways."""

    def test_one_that_sleeps_in_its_forward_pass(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "forward:0", *TENSOR)
        place = IN_LAYER_2.format("forward")
        assert f"rank 1 waits in all-reduce of group tp ({place}); rank 0 is not there: it is in {place}; " in text

    def test_one_that_reads_data_for_too_long(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "data:1")
        assert "rank 0 waits in all-reduce of group dp (gradient reduction, iteration " in text
        assert "rank 1 is not there: it is in data loading, iteration " in text

    def test_one_that_sleeps_while_saving(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "save:1", "evaluation.interval=0")
        assert (
            "rank 0 waits in broadcast of all ranks (saving, iteration 6); rank 1 is not there: it is in saving" in text
        )

    def test_one_that_sleeps_in_the_evaluation(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "evaluation:1")
        assert "rank 0 waits in all-reduce of all ranks (the evaluation, forward, iteration 5); rank 1 is not" in text
        assert "it is in the evaluation, iteration 5; " in text

    def test_one_whose_library_holds_pythons_lock(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "lock:1")
        assert "rank 0 waits in all-reduce of group dp" in text
        assert "is alive, but its Python does not run" in text
        assert f"it was last in {IN_LAYER_2.format('backward')}" in text

    def test_two_groups_in_two_orders(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "crossed:all")
        assert (
            "rank 0 waits in all-reduce of group first (between two steps, iteration 3) for rank 1, rank 1 waits"
            in text
        )
        assert "a deadlock" in text

    def test_one_that_goes_past_the_collectives_of_a_step(self, tmp_path, tokens):
        """As after an exception that was swallowed; the steps after it pair up one late, until the log does not."""
        rare = ["logging.log_interval=10", "evaluation.interval=0", "checkpoint.save=false"]
        text = said(tmp_path, tokens, "swallowed:1", *TENSOR, *rare)
        assert "rank 0 waits in all-reduce of group tp (embedding, forward, iteration 10)" in text
        assert "rank 1 waits in all-reduce of all ranks (logging, iteration 10)" in text
        assert "rank 1 is ahead: it skipped a collective of group tp" in text

    def test_a_stage_that_is_stopped(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "stopped:0", *PIPELINE)
        assert (
            f"rank 1 waits in recv_forward with rank 0 (group pp) (its step, iteration {ITERATION}); rank 0 is" in text
        )
        assert f"it was last in layer 2 of 4, forward, iteration {ITERATION}" in text

    def test_a_stage_that_sleeps_before_it_sends(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "message:0", *PIPELINE)
        assert "rank 1 waits in recv_forward with rank 0 (group pp)" in text
        assert "rank 0 is not there: it is in its step, forward" in text

    def test_a_rank_that_recomputes(self, tmp_path, tokens):
        text = said(tmp_path, tokens, "backward:1", *TENSOR, "recompute.granularity=full")
        assert f"rank 1 is not there: it is in {IN_LAYER_2.format('backward')}" in text

    def test_a_rank_of_deepspeed_with_weights_in_parts(self, tmp_path, tokens):
        """ZeRO-3 gathers weights in every layer."""
        text = said(tmp_path, tokens, "backward:1", "engine={name: deepspeed, zero: {stage: 3}}")
        assert f"rank 1 is not there: it is in {IN_LAYER_2.format('backward')}" in text
        assert "rank 0 waits in " in text

    def test_a_rank_that_fails_while_a_checkpoint_is_written_is_shown_with_its_error(self, tmp_path, tokens):
        """It ends when that is written; the others hang before, and no restart would help."""
        code, output, reports = hang(tmp_path, tokens, "error while saving:1", ["checkpoint.async_save=true"])
        assert code == 2
        assert output.endswith("rank 1: sample 4711 is damaged\n")
        assert "after its own error, DataError: sample 4711 is damaged; " in reports[0]

    @pytest.mark.parametrize("fault", ["shape:1", "skipped:1"])
    def test_what_gloo_aborts_for_is_shown_with_place_and_stack(self, tmp_path, tokens, fault):
        """gloo ends a process that receives more than it asked for; its message names no rank."""
        code, output, reports = hang(tmp_path, tokens, fault, TENSOR)
        assert (code, reports) == (1, [])
        assert "rank 1 failed:\nIt was killed by SIGABRT." in output
        assert f", forward, iteration {ITERATION}." in output
        assert "in all_reduce\n" in output


@pytest.mark.full
def test_under_torchrun_the_report_is_on_the_output(tmp_path, tokens):
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(json.dumps({**RECIPE, "data": {"path": str(tokens), "split": "80,10,10", "num_workers": 0}}))
    script = tmp_path / "one_rank.py"
    script.write_text(
        "import sys\n"
        "from pretrain.launch.job import job_of\n"
        "from pretrain.launch.schedulers import current_world\n"
        "job_of(sys.argv[1]).run(current_world())\n"
    )
    job = Job(
        recipe=str(recipe), backend="cpu", run_dir=str(tmp_path / "run"), prepared=True, train="faulty_training:train"
    )
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *torchrun, str(script), job.to_json()],
        env={**os.environ, "PYTHONPATH": str(HERE), "FAULT": "forward:1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "rank 1 is not there: it is in layer 2 of 3, forward" in done.stderr
