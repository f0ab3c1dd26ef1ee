"""A profile of a run: its files and its report, and losses as without it."""

import gzip
import json

import pytest

from e2e.conftest import metrics, pretrain, tiny

pytestmark = [pytest.mark.usefixtures("forked_python"), pytest.mark.xdist_group("one run")]
SHORT = ("train.train_iters=4", "schedule.lr_warmup_iters=1")


def run(text_tokens, run_dir, *settings, ranks=1):
    given = [part for each in (*SHORT, "checkpoint={save: false}", *settings) for part in ("--set", each)]
    printed = pretrain(*tiny(text_tokens, run_dir), *given, "--nproc", ranks)
    losses = [(line["lm_loss"], line["grad_norm"]) for line in metrics(run_dir) if line["kind"] == "train"]
    return printed, losses


def names_in(path):
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return {event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"}


@pytest.mark.full
def test_a_trace_has_the_names_of_steps_phases_layers_and_kernels(text_tokens, tmp_path):
    printed, _ = run(text_tokens, tmp_path / "with", "profile={start: 3, steps: 2}")
    folder = tmp_path / "with/profile"
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "rank0-iteration3.json",
        "rank0-iteration3.trace.json.gz",
    ]
    names = names_in(folder / "rank0-iteration3.trace.json.gz")
    assert {"step 3", "step 4", "data", "forward-backward", "forward", "layer 1", "layer 2/mlp"} <= names
    assert any(name.startswith("layer 2/self_attention.core_attention: ") for name in names)
    assert any(name.startswith("optimizer: ") for name in names)
    assert "step 2" not in names
    summary = json.loads((folder / "rank0-iteration3.json").read_text())
    assert sum(part["seconds"] for part in summary["parts"]) == pytest.approx(summary["seconds"])
    assert {"forward", "backward", "optimizer", "data"} <= {part["phase"] for part in summary["parts"]}
    backward = {part["part"] for part in summary["parts"] if part["phase"] == "backward"}
    assert any(part.startswith("mlp.linear_fc1: ") for part in backward)  # the operators of autograd have its name
    assert "profile of rank 0, iterations 3 to 4: " in printed
    assert "USDT" not in printed
    assert "Where a step goes" in (tmp_path / "with/report.html").read_text()


@pytest.mark.full
def test_the_losses_are_those_without_a_profile(text_tokens, tmp_path):
    _, without = run(text_tokens, tmp_path / "without")
    assert run(text_tokens, tmp_path / "with", "profile={start: 2, steps: 3, memory: true}")[1] == without
    assert not (tmp_path / "without/profile").exists()


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize(
    "layout",
    [
        ["parallel.tensor_model_parallel_size=2"],
        ["parallel.pipeline_model_parallel_size=2"],
        ["parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true"],
        ["engine={name: deepspeed, zero: {stage: 3}}"],
        ["recompute={granularity: full, method: uniform, num_layers: 1}"],
    ],
)
def test_two_ranks_are_profiled_in_every_layout_with_the_same_losses(text_tokens, tmp_path, layout):
    _, without = run(text_tokens, tmp_path / "without", *layout, ranks=2)
    profile = "profile={start: 2, steps: 2, ranks: [0, 1]}"
    printed, losses = run(text_tokens, tmp_path / "with", profile, *layout, ranks=2)
    assert losses == without
    for rank in (0, 1):
        names = names_in(tmp_path / f"with/profile/rank{rank}-iteration2.trace.json.gz")
        assert {"step 2", "step 3", "forward"} <= names
        assert f"profile of rank {rank}, iterations 2 to 3: " in printed
        summary = json.loads((tmp_path / f"with/profile/rank{rank}-iteration2.json").read_text())
        assert "communication" in {part["phase"] for part in summary["parts"]}
        assert 0 < summary["communication"] < summary["seconds"]
