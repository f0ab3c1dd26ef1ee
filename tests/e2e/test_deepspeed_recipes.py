"""The recipes of the DeepSpeed engine, scaled down, on two ranks of the CPU."""

import json

import pytest

from e2e.conftest import latest, metrics, overrides, pretrain

SCALED = (
    "model.num_layers=2",
    "model.seq_length=64",
    "model.max_position_embeddings=64",
    "tokenizer={type: bytes}",
    "logging.log_interval=1",
    "evaluation.iters=1",
)

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture
def train(text_tokens, tmp_path):
    """Train a recipe on two ranks; return the records of each iteration, and the run directory."""

    def run(recipe, name, *settings):
        data = f"data={{path: {text_tokens}, split: '90,5,5', num_workers: 0}}"
        pretrain(
            *("--backend", "cpu", f"recipes/{recipe}.yml", "--nproc", 2, "--run-dir", tmp_path / name),
            *overrides(*SCALED, data, *settings),
        )
        return [record for record in metrics(tmp_path / name) if record["kind"] == "train"], tmp_path / name

    return run


@pytest.mark.full
def test_gpt2_345m_zero3_trains_on_two_replicas(train):
    shape = ("model.hidden_size=64", "model.num_attention_heads=4", "parallel.tensor_model_parallel_size=1")
    length = ("train.train_iters=8", "schedule.lr_decay_iters=8", "optimizer.lr=1e-3")
    records, run_dir = train(
        "gpt2-345m-zero3", "run", *shape, *length, "engine.zero.offload_optimizer.cpu_adam=torch"
    )  # DeepSpeed's Adam would be compiled
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert records[-1]["lm_loss"] < records[0]["lm_loss"] - 0.1
    assert json.loads((run_dir / "environment.json").read_text())["layout"]["data_parallel_size"] == 2


@pytest.mark.full
def test_tiny_rampup_has_the_same_metrics_on_both_engines_through_overflows_and_larger_batches(train):
    settings = (
        *("train.train_samples=60", "train.rampup_batch_size=[2, 2, 30]", "train.global_batch_size=8"),
        *("train.exit_interval=10", "evaluation.interval=10"),
        *("precision.initial_loss_scale=1048576", "precision.loss_scale_window=3"),  # the first steps overflow
    )
    ours, run_dir = train("tiny-rampup", "deepspeed", *settings)
    theirs, _ = train("tiny-rampup", "megatron", *settings, "engine.name=megatron")
    for key in ("iteration", "consumed_samples", "global_batch_size", "skipped_iterations", "loss_scale"):
        assert [record[key] for record in ours] == [record[key] for record in theirs], key
    # Rounding a weight to another fp16 number (a thousandth) shows in the norm.
    for key, rel in (("lm_loss", 1e-5), ("grad_norm", 1e-3), ("learning_rate", 0)):
        taken = [[record[key] for record in records if not record["skipped_iterations"]] for records in (ours, theirs)]
        assert taken[0] == pytest.approx(taken[1], rel=rel), key
    assert [record["skipped_iterations"] for record in ours] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert [record["global_batch_size"] for record in ours] == [2, 2, 2, 2, 2, 4, 4, 4, 6, 6]
    assert [record["loss_scale"] for record in ours] == [
        2.0**power for power in (20, 19, 18, 17, 17, 17, 18, 18, 18, 19)
    ]
    assert latest(run_dir) == 10
