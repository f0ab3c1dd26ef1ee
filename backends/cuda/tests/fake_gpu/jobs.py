"""The jobs that the gate takes a rank of: recipes, some with fewer layers, and the layouts that none of them has."""

from __future__ import annotations

GPT, NEOX = 50257, 50277

SMALL = ["model.num_layers=16", "model.hidden_size=2048", "model.num_attention_heads=16", "train.global_batch_size=64"]
INTERLEAVED = [
    *SMALL,
    "parallel.tensor_model_parallel_size=2",
    "parallel.pipeline_model_parallel_size=4",
    "parallel.virtual_pipeline_model_parallel_size=2",
    "parallel.sequence_parallel=true",
    "parallel.use_distributed_optimizer=true",
    "parallel.overlap_grad_reduce=true",
    "parallel.overlap_param_gather=true",
    "precision.dtype=bf16",
    "recompute.granularity=none",
]
DOCUMENTS = ["model.num_layers=4", "data.reset_attention_mask=true", "parallel.tensor_model_parallel_size=2"]
DETERMINISTIC = ["model.num_layers=4", "train.deterministic_mode=true", "precision.dtype=bf16"]
BF16 = ["precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"]
LEAN = ["parallel.sequence_parallel=true", "recompute.granularity=none"]
FP8 = ["model.num_layers=16", "precision.dtype=bf16", *LEAN]


def _job(recipe, rank, world, micro_batches, *overrides, product="a100"):
    vocab_size = NEOX if recipe == "neox20b.yml" else GPT
    return {
        "recipe": recipe,
        "rank": rank,
        "world": world,
        "micro_batches": micro_batches,
        "vocab_size": vocab_size,
        "set": list(overrides),
        "product": product,
        "compile": True,
    }


def _zero(stage):
    return ["engine.name=deepspeed", f"engine.zero.stage={stage}", "model.num_layers=4", "train.global_batch_size=8"]


ALWAYS = {
    "gpt3, two layers a stage, first stage": _job("gpt3.yml", 0, 64, 8, "model.num_layers=16"),
}
"""Jobs of every `make test`."""

FULL = {
    "ZeRO-3": _job("gpt2-345m.yml", 1, 4, 2, *_zero(3)),
    "interleaved, one layer a chunk, a stage between": _job("gpt3.yml", 9, 32, 8, *INTERLEAVED, "model.num_layers=8"),
    "document masks": _job("gpt2-345m.yml", 1, 2, 2, *DOCUMENTS),
    "neox20b, two layers a stage, first stage": _job("neox20b.yml", 0, 96, 4, "model.num_layers=8"),
    "deterministic": _job("gpt2-345m.yml", 0, 1, 2, *DETERMINISTIC),
    "ZeRO-1": _job("gpt2-345m.yml", 1, 4, 2, *_zero(1)),
    "gpt3, first stage": _job("gpt3.yml", 0, 64, 8),
    "neox20b, first stage": _job("neox20b.yml", 0, 96, 4),
    "gpt2-345m": _job("gpt2-345m.yml", 0, 1, 2),
    "gpt3, last stage": _job("gpt3.yml", 63, 64, 2),
    "gpt3, a stage between": _job("gpt3.yml", 27, 64, 8),
    "gpt3, eight replicas": _job("gpt3.yml", 511, 512, 4),
    "gpt3 on Hopper": _job("gpt3.yml", 0, 64, 8, product="h100"),
    "gpt3, sequence parallel, nothing recomputed, first stage": _job("gpt3.yml", 0, 64, 8, *LEAN),
    "gpt3, sequence parallel, nothing recomputed, last stage": _job("gpt3.yml", 63, 64, 8, *LEAN),
    "neox20b, last stage": _job("neox20b.yml", 95, 96, 8),
    "neox20b, sequence parallel, last stage": _job("neox20b.yml", 95, 96, 4, "parallel.sequence_parallel=true"),
    "interleaved, a stage between": _job("gpt3.yml", 9, 32, 8, *INTERLEAVED),
    "interleaved, first stage": _job("gpt3.yml", 0, 32, 8, *INTERLEAVED),
    "interleaved, last stage": _job("gpt3.yml", 31, 32, 8, *INTERLEAVED),
    "document masks, deterministic, bf16": _job("gpt2-345m.yml", 0, 2, 2, *DOCUMENTS, *DETERMINISTIC[1:]),
    "ZeRO-0 in bf16": _job("gpt2-345m.yml", 1, 4, 2, *_zero(0), *BF16),
    "ZeRO-2": _job("gpt2-345m.yml", 1, 4, 2, *_zero(2)),
    "experts: mixtral-8x7b, first stage": _job("mixtral-8x7b.yml", 0, 64, 4),
    "experts: qwen3-30b-a3b, last stage": _job("qwen3-30b-a3b.yml", 63, 64, 2),
    "experts: qwen3-30b-a3b on Hopper, four layers": _job(
        "qwen3-30b-a3b.yml", 0, 64, 2, "model.num_layers=4", product="h100"
    ),
    "fp8 by rows on Hopper": _job("gpt3.yml", 0, 64, 8, *FP8, "precision.fp8=rowwise", product="h100"),
    "fp8 by blocks on Hopper": _job("gpt3.yml", 0, 64, 8, *FP8, "precision.fp8=block", product="h100"),
    "ZeRO-3 in bf16": _job("gpt2-345m.yml", 1, 4, 2, *_zero(3), "precision.dtype=bf16"),
}
"""Further jobs of `make test-all`."""

JOBS = ALWAYS | FULL
DEEPSPEED = [name for name in JOBS if name.startswith("ZeRO")]
EXPERTS = [name for name in JOBS if name.startswith("experts: ")]
MEGATRON = [name for name in JOBS if name not in {*DEEPSPEED, *EXPERTS}]
