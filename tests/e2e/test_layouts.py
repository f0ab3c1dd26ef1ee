"""The seeds' recipes, scaled down, on four ranks of the CPU."""

import pytest

from e2e.conftest import metrics, overrides, pretrain

SCALED = overrides(
    "model.num_layers=2",
    "model.hidden_size=128",
    "model.num_attention_heads=8",
    "model.seq_length=64",
    "model.max_position_embeddings=64",
    "tokenizer={type: bytes}",
    "train.micro_batch_size=1",
    "train.global_batch_size=4",
    "precision.initial_loss_scale=65536",
    "parallel.tensor_model_parallel_size=2",
    "parallel.pipeline_model_parallel_size=2",
    "logging.log_interval=1",
    "evaluation={interval: 100, iters: 1}",
)

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.mark.full
@pytest.mark.parametrize("recipe", ["gpt3", pytest.param("neox20b", marks=pytest.mark.full)])
def test_a_large_recipe_scaled_down_trains_on_two_by_two_ranks(recipe, text_tokens, tmp_path):
    run_dir = tmp_path / recipe
    length = "train.train_samples=32" if recipe == "gpt3" else "train.train_iters=8"
    schedule = "schedule={lr_decay_style: cosine}"
    data = f"data={{path: {text_tokens}, split: '90,10,0', num_workers: 0}}"
    pretrain(
        *("--backend", "cpu", f"recipes/{recipe}.yml", "--nproc", 4, "--run-dir", run_dir),
        *(*SCALED, *overrides(length, schedule, data, "optimizer.lr=1e-3")),
    )
    records = [record for record in metrics(run_dir) if record["kind"] == "train"]
    assert records[-1]["iteration"] == 8
    trained = [record["lm_loss"] for record in records if record["lm_loss"] is not None]
    assert trained[-1] < trained[0]
    assert records[-1]["loss_scale"] is not None
