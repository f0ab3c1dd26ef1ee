"""One training step of a Llama of 100 M parameters and of a small Mixtral on the CPU, in fp32.

    python -m benchmarks.training.modern_step [--rounds 7] [--threads 2]

pretrain, Hugging Face's LlamaForCausalLM and MixtralForCausalLM, and megatron-core's GPTModel with its local spec; the
last has no mixture without Transformer Engine (its router reads a name that is not bound). AdamW, gradients clipped
to 1, no dropout. Each in a process of its own takes a step in turn, and the ratios are taken round by round, as in
`train_step`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from functools import partial

import torch

from benchmarks import machine
from benchmarks.timing import spread
from benchmarks.training.train_step import Worker, serve

_LLAMA = {
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
MODELS = {
    "llama": _LLAMA
    | {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "num_query_groups": 4}
    | {"ffn_hidden_size": 2048, "seq_length": 1024},
    "mixture": _LLAMA
    | {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 4}
    | {"ffn_hidden_size": 512, "seq_length": 256}
    | {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 256},
}
SAMPLES, VOCAB = {"llama": 1, "mixture": 8}, {"llama": 16384, "mixture": 8192}
SYSTEMS = {"llama": ("pretrain", "huggingface", "megatron"), "mixture": ("pretrain", "huggingface")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--system", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="write results/modern_step.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.system:
        name, model = arguments.system
        serve({"pretrain": pretrain, "huggingface": huggingface, "megatron": megatron}[name](model))
        return
    result = machine.describe(arguments.threads)
    for model in MODELS:
        result[model] = compare(model, arguments.rounds, arguments.threads)
        print(json.dumps({model: result[model]}, indent=1))
    if arguments.keep:
        machine.keep("modern_step", result)


class System(Worker):
    """A system in a process of its own."""

    def __init__(self, name: str, model: str, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.training.modern_step", "--threads", str(threads)]
        self.about = {}
        self.process = subprocess.Popen(
            [*command, "--system", name, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=machine.ROOT,
        )


def compare(model: str, rounds: int, threads: int) -> dict[str, object]:
    """Return tokens per second of every system, and how many times as fast the first one is."""
    systems = {name: System(name, model, threads) for name in SYSTEMS[model]}
    for system in systems.values():
        system.step(), system.step()  # warm up
    taken = [{name: system.step() for name, system in systems.items()} for _ in range(rounds)]
    for system in systems.values():
        system.close()
    tokens = SAMPLES[model] * MODELS[model]["seq_length"]
    result: dict[str, object] = {"model": MODELS[model], "samples": SAMPLES[model], "vocabulary": VOCAB[model]}
    for name in systems:
        seconds = statistics.median(steps[name][0] for steps in taken)
        result[name] = {"tokens_per_second": round(tokens / seconds, 1), "last_loss": round(taken[-1][name][1], 4)}
        if name != "pretrain":
            result[f"speed over {name}"] = spread([steps[name][0] / steps["pretrain"][0] for steps in taken], 3)
    return result


def tokens_of(model: str) -> torch.Tensor:
    """Return the same tokens for all systems, [b, s + 1]."""
    shape = (SAMPLES[model], MODELS[model]["seq_length"] + 1)
    return torch.randint(0, VOCAB[model], shape, generator=torch.Generator().manual_seed(0))


def pretrain(model: str):
    """Return the step of the engine as a recipe builds it."""
    from pretrain.bridge import megatron as bridge
    from pretrain.plugins.host.manager import load
    from pretrain.recipe import make_recipe

    plugins = load("cpu")
    bridge.install(plugins.backend)
    from pretrain.engine import groups
    from pretrain.engine.build import build_engine

    recipe = make_recipe(
        {
            "model": MODELS[model],
            "tokenizer": {"type": "bytes"},
            "data": {"path": "unused"},
            "train": {"micro_batch_size": SAMPLES[model], "global_batch_size": SAMPLES[model], "train_iters": 1000},
            "optimizer": {"lr": 1e-4, "weight_decay": 0.1},
            "schedule": {"lr_decay_style": "constant"},
        }
    )
    groups.join_world(plugins.backend, 0, 1, 10)
    engine, _ = build_engine(recipe, plugins, VOCAB[model], plugins.backend.device(0), notify=print)
    tokens = tokens_of(model)
    batch = {
        "num_tokens": torch.tensor(float(tokens[:, 1:].numel())),
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:].contiguous(),
        "loss_mask": torch.ones(tokens[:, 1:].shape),
        "position_ids": torch.arange(tokens.shape[1] - 1).expand(len(tokens), -1),
    }

    def step() -> float:
        return engine.train_step(iter([batch]), 1).loss.item()

    return step


def huggingface(model: str):
    """Return the step of the same model of transformers, with SDPA and torch's fused AdamW."""
    import transformers

    sizes = MODELS[model]
    shape = {
        "vocab_size": VOCAB[model],
        "hidden_size": sizes["hidden_size"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_key_value_heads": sizes["num_query_groups"],
        "max_position_embeddings": sizes["seq_length"],
        "use_cache": False,
    }
    torch.manual_seed(1)
    if model == "llama":
        config = transformers.LlamaConfig(**shape, intermediate_size=sizes["ffn_hidden_size"])
        network = transformers.LlamaForCausalLM(config)
    else:
        experts = {"num_local_experts": sizes["num_experts"], "num_experts_per_tok": sizes["moe_router_topk"]}
        config = transformers.MixtralConfig(**shape, **experts, intermediate_size=sizes["moe_ffn_hidden_size"])
        network = transformers.MixtralForCausalLM(config)
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    tokens = tokens_of(model)[:, :-1]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = network(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def megatron(model: str):
    """Return the step of megatron-core's own layers and optimizer."""
    import torch.distributed as dist

    from pretrain.bridge import megatron as bridge
    from pretrain.plugins.host.manager import load

    bridge.install(load("cpu").backend)
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    sizes = MODELS[model]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    same = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "normalization")
    config = TransformerConfig(
        **{name: sizes[name] for name in same},
        **{name: sizes[name] for name in ("add_bias_linear", "hidden_dropout", "attention_dropout")},
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        transformer_impl="local",
    )
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    options = {"position_embedding_type": "rope", "share_embeddings_and_output_weights": False}
    network = GPTModel(config, spec, VOCAB[model], sizes["seq_length"], **options)
    network = DistributedDataParallel(config, DistributedDataParallelConfig(), network)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, weight_decay=0.1, clip_grad=1.0), [network])
    config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
    tokens, length = tokens_of(model), sizes["seq_length"]
    positions = torch.arange(length).expand(len(tokens), -1)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)

    def mean(loss):
        loss = loss.float().mean()
        return loss, loss.detach().clone()

    def forward(batches, chunk):
        batch = next(batches)
        return chunk(batch[:, :-1], positions, mask, labels=batch[:, 1:].contiguous()), partial(mean)

    def step() -> float:
        network.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([tokens]),
            model=[network],
            num_microbatches=1,
            seq_length=length,
            micro_batch_size=len(tokens),
            forward_only=False,
        )
        optimizer.step()
        return losses[0].item()

    return step


if __name__ == "__main__":
    main()
