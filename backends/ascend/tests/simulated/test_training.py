"""Trainings on an NPU have the loss curve of the cpu backend. Skipped where there is none.

`make test-ascend` gives them a simulated one: the real torch_npu and its process groups, and no kernel of CANN's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from forked_python import client
from pretrain.plugins.backend import Unavailable
from pretrain_ascend.backend import AscendBackend
from pretrain_ascend.devices import Family, family_of

ROOT = Path(__file__).parents[4]
IS_SIMULATED = "ascend_simulator.start" in sys.modules
BACKEND = "ascend"
TINY = (
    "model={num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32}",
    "model.activation=gelu_tanh",
    "model.hidden_dropout=0.0",
    "model.attention_dropout=0.0",
    "tokenizer={type: bytes}",
    "train={micro_batch_size: 2, global_batch_size: 4, train_iters: 12, seed: 7}",
    "schedule={lr_warmup_iters: 4, lr_decay_style: cosine}",
    "precision.dtype=fp32",
    "evaluation={interval: 12, iters: 2}",
    "logging={log_interval: 1, tensorboard: false}",
)
TENSOR, PIPELINE = "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"
ZERO_1, ZERO_3 = "parallel.use_distributed_optimizer=true", "engine={name: deepspeed, zero: {stage: 3}}"
ENGINES = {"megatron": "engine.name=megatron", "deepspeed": "engine={name: deepspeed, zero: {stage: 1}}"}
BUCKET = "engine.zero.reduce_bucket_size=1000000"
"""DeepSpeed's own takes 2 GB in each rank, which the simulator fills with NaN. In bf16 there is none."""
LAYOUTS = {
    "alone": (1, ()),
    "tensor": (2, (TENSOR,)),
    "sequence": (2, (TENSOR, "parallel.sequence_parallel=true")),
    "pipeline": (2, (PIPELINE,)),
    "data": (2, (ZERO_1,)),
    "zero3": (2, (ZERO_3, BUCKET)),
}
FULL = ("tensor", "pipeline", "data")
"""On a commit "sequence" is tensor parallel too, and the experts on two ranks have the distributed optimizer."""

OVERFLOWS, SHORT = ", initial_loss_scale: 1048576, hysteresis: 1", "train.train_iters=10"
"""The first steps overflow, the last ones do not."""
SCALED = (
    "model.num_layers=2",
    "model.hidden_size=128",
    "model.num_attention_heads=8",
    "model.seq_length=64",
    "model.max_position_embeddings=64",
    "tokenizer={type: bytes}",
    "train.micro_batch_size=1",
    "train.global_batch_size=4",
    "precision.initial_loss_scale=65536",
    "schedule={lr_decay_style: cosine}",
    "optimizer.lr=1e-3",
    "logging={log_interval: 1, tensorboard: false}",
    "evaluation={interval: 100, iters: 1}",
    "checkpoint.save=false",
)

if isinstance(answer := AscendBackend().availability(), Unavailable):
    pytest.skip(f"no NPU: {answer.reason}", allow_module_level=True)

pytestmark = [
    *(pytest.mark.slow, pytest.mark.ranks, pytest.mark.xdist_group("ranks")),
    pytest.mark.usefixtures("forked_python"),
]


def command(*arguments, backend="cpu", environment=None):
    """Run the command in the repository's root and return how it went."""
    return subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", client.BACKEND: backend, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def pretrain(*arguments, **options):
    """Run the command, which must succeed."""
    done = command(*arguments, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def tokens(forked_python, tmp_path_factory):
    """Prefix of a token file of bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 6))) for _ in range(50)]
    texts = [" ".join(draw.choices(words, k=draw.randint(20, 60))) for _ in range(400)]
    folder.joinpath("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pretrain(
        *("data", "build", folder / "text.jsonl", "--output-prefix", folder / "text"),
        *("--tokenizer-type", "bytes", "--append-eod", "--workers", "1"),
    )
    return folder / "text_text_document"


@pytest.fixture(scope="module")
def train(tokens, tmp_path_factory):
    """Train and return the records of all iterations, and the run directory."""
    folder = tmp_path_factory.mktemp("runs")

    def run(backend, name, settings, *, ranks=1, recipe="quickstart", base=TINY, options=(), environment=None):
        run_dir = folder / name
        data = f"data={{path: {tokens}, split: '90,5,5', num_workers: 0}}"
        words = [word for setting in (*base, data, *settings) for word in ("--set", setting)]
        command = [f"recipes/{recipe}.yml", "--backend", backend, "--nproc", ranks, "--run-dir", run_dir]
        pretrain(*command, *words, *options, backend=backend, environment=environment)
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == "train"], run_dir

    return run


@pytest.fixture(scope="module")
def in_16_bits_on_the_cpu(train):
    """Settings and records of one training for each dtype and engine."""

    @cache
    def run(dtype, engine):
        scale = "" if dtype == "bf16" else OVERFLOWS
        settings = (f"precision={{dtype: {dtype}{scale}}}", ENGINES[engine], "checkpoint.save=false", SHORT)
        if (dtype, engine) == ("fp16", "deepspeed"):
            settings = (*settings, BUCKET)
        return settings, train("cpu", f"cpu-{dtype}-{engine}", settings)[0]

    return run


@pytest.fixture(scope="module")
def on_the_cpu(train):
    """The records of the training that all layouts repeat."""
    return train("cpu", "cpu", ("checkpoint.save=false",))[0]


def curve(records):
    return [record["lm_loss"] for record in records]


@pytest.mark.parametrize(
    "layout", [pytest.param(layout, marks=[pytest.mark.full] * (layout in FULL)) for layout in LAYOUTS]
)
def test_the_curve_is_the_cpus(train, on_the_cpu, layout, monkeypatch):
    if layout == "alone":  # one process that is not forked: torch_npu is imported in a rank's own environment
        monkeypatch.setattr(subprocess, "Popen", client.STARTED)
    ranks, settings = LAYOUTS[layout]
    records, run_dir = train(BACKEND, layout, (*settings, "checkpoint.save=false"), ranks=ranks)
    assert curve(records) == pytest.approx(curve(on_the_cpu), rel=1e-5)
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["kernels"]["backend"] == BACKEND


EXPERTS = (
    "model.add_bias_linear=false",
    "model.num_experts=4",
    "model.moe_shared_expert_intermediate_size=32",
    "model.moe_router_score_function=sigmoid",
    "model.moe_router_enable_expert_bias=true",
    "model.moe_router_load_balancing_type=seq_aux_loss",
    "checkpoint.save=false",
)
EXPERT_LAYOUTS = {
    "experts on two ranks": ("parallel.expert_model_parallel_size=2", ZERO_1),
    "experts whole on tensor ranks": (
        TENSOR,
        "parallel.sequence_parallel=true",
        "parallel.expert_tensor_parallel_size=1",
    ),
}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[pytest.mark.full] * ("whole" in name)) for name in EXPERT_LAYOUTS]
)
def test_experts_have_the_curve_of_the_cpu(train, layout):
    alone = train("cpu", f"cpu, {layout}", EXPERTS)[0]
    records, _ = train(BACKEND, layout, (*EXPERTS, *EXPERT_LAYOUTS[layout]), ranks=2)
    assert curve(records) == pytest.approx(curve(alone), rel=1e-5)
    assert [record["moe_most_loaded"] for record in records] == [record["moe_most_loaded"] for record in alone]


DOCUMENTS = ("data.reset_attention_mask=true", "train.micro_batch_size=1", "checkpoint.save=false", SHORT)


@pytest.mark.parametrize(
    "settings", [(), pytest.param(("precision.dtype=bf16",), marks=pytest.mark.full)], ids=["fp32", "bf16"]
)
def test_documents_on_ranks_that_share_sequences_have_the_curve_of_the_cpu(train, settings):
    name = f"documents {settings}"
    alone, _ = train("cpu", f"cpu, {name}", (*DOCUMENTS, *settings))
    found, _ = train(BACKEND, name, (*DOCUMENTS, *settings, "parallel.context_parallel_size=2", ZERO_1), ranks=2)
    assert curve(found) == pytest.approx(curve(alone), rel=5e-3 if settings else 1e-5)


@pytest.mark.full
def test_an_interleaved_pipeline_of_two_stages_has_the_curve_of_one_rank(train):
    """Both ways to the same rank: messages of one batch could be confused."""
    settings = ("model.num_layers=4", "train.global_batch_size=8", "checkpoint.save=false", SHORT)
    interleaved = (PIPELINE, "parallel.virtual_pipeline_model_parallel_size=2")
    expected, _ = train("cpu", "cpu-interleaved", settings)
    found, _ = train(BACKEND, "interleaved", (*settings, *interleaved), ranks=2)
    assert curve(found) == pytest.approx(curve(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [pytest.param((), 1, id="megatron"), pytest.param((ZERO_3, BUCKET), 2, id="zero3", marks=pytest.mark.full)],
)
def test_a_checkpoint_goes_from_the_cpu_to_the_npu_and_back(train, on_the_cpu, settings, ranks):
    """Weights, optimizer and schedule: the numbers of an uninterrupted training on the CPU."""
    found = there_and_back(train, f"fp32-{ranks}", settings, ranks=ranks)
    check_continued(found, on_the_cpu, loss=1e-5, norm=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_checkpoint_in_16_bits_goes_from_the_cpu_to_the_npu_and_back(train, dtype, engine):
    """fp16 overflows before the device changes: its loss scale goes along."""
    scale = "" if dtype == "bf16" else OVERFLOWS
    settings = (f"precision={{dtype: {dtype}{scale}}}", ENGINES[engine])
    if (dtype, engine) == ("fp16", "deepspeed"):
        settings = (*settings, BUCKET)
    expected, _ = train("cpu", f"whole-{dtype}-{engine}", (*settings, "checkpoint.save=false"))
    found = there_and_back(train, f"{dtype}-{engine}-there-and-back", settings)
    assert [record["loss_scale"] for record in found] == [record["loss_scale"] for record in expected]
    check_continued(found, expected, loss=1e-3, norm=1e-2)


def there_and_back(train, name, settings, ranks=1):
    """Train four iterations on the CPU, four on the NPU, four on the CPU, in one run directory; return the records."""
    records = []
    for backend, until in (("cpu", 4), (BACKEND, 8), ("cpu", 12)):
        stop = (f"train.exit_interval={until}", "checkpoint.save_interval=4")
        resume = ("--resume",) if records else ()
        records, _ = train(backend, name, (*settings, *stop), ranks=ranks, options=resume)
    return records


def check_continued(found, expected, *, loss, norm):
    """Compare with a training in one piece: relative differences of losses and gradient norms, equal learning rates."""
    for key, tolerance in (("iteration", 0), ("learning_rate", 0), ("lm_loss", loss), ("grad_norm", norm)):
        pairs = [(a[key], b[key]) for a, b in zip(found, expected, strict=True) if not b["skipped_iterations"]]
        assert [a for a, _ in pairs] == pytest.approx([b for _, b in pairs], rel=tolerance, abs=0), key
    assert [a["skipped_iterations"] for a in found] == [b["skipped_iterations"] for b in expected]


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "dtype", "tolerance"),
    [
        ("megatron", "bf16", 2e-2),
        pytest.param("deepspeed", "fp16", 4e-3, marks=pytest.mark.full),
        pytest.param("megatron", "fp16", 4e-3, marks=pytest.mark.full),
        pytest.param("deepspeed", "bf16", 2e-2, marks=pytest.mark.full),
    ],
)
def test_fp16_and_bf16_have_about_the_curve_of_the_cpu(train, in_16_bits_on_the_cpu, dtype, tolerance, engine):
    """fp16 begins with a loss scale that overflows: the same steps are skipped."""
    settings, expected = in_16_bits_on_the_cpu(dtype, engine)
    found, _ = train(BACKEND, f"{dtype}-{engine}", settings)
    assert [record["skipped_iterations"] for record in found] == [record["skipped_iterations"] for record in expected]
    kept = [(a["lm_loss"], b["lm_loss"]) for a, b in zip(found, expected, strict=True) if not a["skipped_iterations"]]
    assert [a for a, _ in kept] == pytest.approx([b for _, b in kept], rel=tolerance)
    assert (sum(record["skipped_iterations"] for record in found) > 0) is (dtype == "fp16")


@pytest.mark.full
@pytest.mark.parametrize("recipe", ["gpt3", "neox20b"])
def test_a_large_recipe_scaled_down_trains_on_two_by_two_ranks(train, recipe):
    own = {"gpt3": "train.train_samples=32", "neox20b": "train.train_iters=8"}[recipe]
    block = ("kernels.triangle_block_size=32",) if recipe == "neox20b" else ()
    settings = (*SCALED, *block, own, TENSOR, PIPELINE)
    records, run_dir = train(BACKEND, recipe, settings, ranks=4, recipe=recipe, base=())
    assert records[-1]["iteration"] == 8
    trained = [record["lm_loss"] for record in records if record["lm_loss"] is not None]
    assert trained[-1] < trained[0]
    rows = json.loads((run_dir / "environment.json").read_text())["kernels"]["rows"]
    chosen = {row["operation"]: row["kernel"] for row in rows}
    assert chosen["attention"] == {"gpt3": "fusion_attention", "neox20b": "triangle_fused"}[recipe]


@pytest.mark.full
def test_compiled_layers_are_refused_before_anything_is_built(tokens, tmp_path):
    settings = (*TINY, f"data={{path: {tokens}, split: '90,5,5'}}", "kernels.compile=layer")
    words = [word for setting in settings for word in ("--set", setting)]
    given = ("--backend", BACKEND, "--nproc", 1, "--run-dir", tmp_path / "run")
    done = command("recipes/quickstart.yml", *given, *words, backend=BACKEND)
    assert done.returncode == 2
    assert "does not support kernels.compile: layer: " in done.stderr
    assert "Set kernels.compile to none." in done.stderr
    assert len(done.stderr.splitlines()) <= 4, done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
def test_a_chip_that_saturates_skips_the_steps_that_overflow(train, in_16_bits_on_the_cpu, engine):
    """On two ranks of the first generation, where no gradient is ever inf: only the float status shows the overflow."""
    settings, expected = in_16_bits_on_the_cpu("fp16", engine)
    chip = {"ASCEND_SIMULATOR_SOC": "Ascend910A"}
    found, run_dir = train(BACKEND, f"saturates-{engine}", settings, ranks=2, environment=chip)
    described = json.loads((run_dir / "environment.json").read_text())["backend"]
    if family_of(described["device"]) is not Family.FIRST and not IS_SIMULATED:
        pytest.skip(f"{described['device']} is no 910A")
    assert (described["overflow"], family_of(described["device"])) == ("saturation", Family.FIRST)
    skipped = [record["skipped_iterations"] for record in found]
    assert skipped == [record["skipped_iterations"] for record in expected]
    assert 0 < sum(skipped) < len(skipped)
    assert found[-1]["lm_loss"] == pytest.approx(expected[-1]["lm_loss"], rel=4e-3)
