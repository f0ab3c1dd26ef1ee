"""Traces for a device that is not there: `python -m tools.plan.trace.named_device OUTPUT`, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TINY = [
    "model.num_layers=2",
    "model.hidden_size=256",
    "model.num_attention_heads=4",
    "model.seq_length=512",
    "model.max_position_embeddings=512",
    "tokenizer.vocab_size=1024",
    "train.micro_batch_size=2",
    "train.global_batch_size=16",
    "precision.dtype=bf16",
]
ZERO = ["engine.name=deepspeed", "engine.zero.stage=2"]
CASES = {
    "flash": ["kernels.attention=flash"],
    "softmax": ["kernels.attention=softmax"],
    "dropout": ["kernels.attention=softmax", "model.attention_dropout=0.1"],
    "split": ["kernels.attention=flash", "parallel.tensor_model_parallel_size=2"],
    "ZeRO-2": ZERO,
    "offload": [*ZERO, "engine.zero.offload_optimizer={device: cpu}"],
}


def main() -> None:
    """Trace all cases on an A100."""
    from pretrain.recipe import load_recipe
    from pretrain.recipe.layout import lay_out
    from pretrain.tools.plan.device import DeviceOptions, find_device
    from pretrain.tools.plan.trace.stage_tracing import TraceSubject, trace_stage

    found = {}
    for case, overrides in CASES.items():
        recipe = load_recipe(Path(__file__).parents[4] / "recipes" / "quickstart.yml", [*TINY, *overrides])
        device = find_device(recipe, DeviceOptions(backend="cuda", name="NVIDIA A100-SXM4-80GB"))
        subject = TraceSubject(recipe=recipe, device=device, layout=lay_out(recipe, 2), vocab_size=1024)
        traced = trace_stage(subject, 0)
        found[case] = {
            "parts": dict(traced.plan.parts),
            "host": traced.plan.host_bytes,
            "parameters": traced.plan.parameters,
            "kernels": {row.operation: row.kernel for row in traced.kernels.rows},
            "most activations": max(moment.parts.get("activations", 0) for moment in traced.plan.course),
        }
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
