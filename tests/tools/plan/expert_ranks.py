"""A rank with experts, as it trains and as it is planned: `python -m tools.plan.expert_ranks OUTPUT CASE`.

It writes its parameters by name, of both, and of the plan the bytes of its parts and its messages in a micro-batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MODEL = {
    "model.num_layers": 4,
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
    "model.seq_length": 64,
    "model.position_embedding_type": "rope",
    "model.normalization": "RMSNorm",
    "model.activation": "swiglu",
    "model.add_bias_linear": False,
    "model.num_experts": 8,
    "model.moe_ffn_hidden_size": 96,
    "model.first_k_dense_replace": 1,
    "model.moe_shared_expert_intermediate_size": 64,
    "train.micro_batch_size": 2,
    "train.global_batch_size": 16,
    "precision.dtype": "bf16",
    "parallel.use_distributed_optimizer": True,
}
TENSOR = {"parallel.tensor_model_parallel_size": 2, "parallel.sequence_parallel": True}
CASES = {
    "expert 2 of 4 replicas": MODEL | {"parallel.expert_model_parallel_size": 2},
    "expert 4, tensor 2, whole": MODEL
    | TENSOR
    | {"parallel.expert_model_parallel_size": 4, "parallel.expert_tensor_parallel_size": 1},
    "expert 2, tensor 2, parts": MODEL | TENSOR | {"parallel.expert_model_parallel_size": 2},
    "expert 2, pipeline 2": MODEL
    | {"parallel.expert_model_parallel_size": 2, "parallel.pipeline_model_parallel_size": 2},
}
WORLD_SIZE, VOCAB_SIZE = 4, 1024


def recipe_of(case):
    from pretrain.recipe import load_recipe

    file = Path(__file__).parents[3] / "recipes" / "quickstart.yml"
    return load_recipe(file, [f"{key}={json.dumps(value)}" for key, value in CASES[case].items()])


def main() -> None:
    from pretrain.bridge import megatron
    from pretrain.bridge.megatron import planning
    from pretrain.cpu.backend import CpuBackend

    output, recipe = Path(sys.argv[1]), recipe_of(sys.argv[2])
    megatron.install(CpuBackend())
    planning.install()
    from pretrain.plugins.host.manager import load
    from pretrain.tools.plan.trace.rank_trace import trace_rank
    from pretrain.tools.plan.trace.trace_summary import summarize_trace

    trained = parameters(recipe)
    trace = trace_rank(recipe, load("cpu"), rank=0, world_size=WORLD_SIZE, vocab_size=VOCAB_SIZE, micro_batches=(1, 2))
    plan = summarize_trace(trace, stage=0, layers="", recipe=recipe, groups=0, memory=None)
    messages = [
        [message.kind, message.group, message.size, message.moved, count]
        for message, count in plan.costs.messages.items()
    ]
    found = {"trained": trained, "planned": trace.parameters, "parts": plan.parts, "messages": messages}
    output.write_text(json.dumps(found))


def parameters(recipe) -> dict[str, int]:
    """Return the parameters of the rank that would train."""
    import torch

    from pretrain.engine import groups
    from pretrain.engine.build import build_engine
    from pretrain.plugins.host.manager import load
    from tools.plan.measured import _no_gloo

    groups.join_planned_world(0, WORLD_SIZE)
    _no_gloo()
    engine, _ = build_engine(recipe, load("cpu"), VOCAB_SIZE, torch.device("cpu"), print)
    (model,) = engine.models
    found = {name: parameter.numel() for name, parameter in model.named_parameters()}
    engine.close()
    groups.leave()
    return found


if __name__ == "__main__":
    main()
