"""Files as Megatron-DeepSpeed writes them of models of transformers, without a pipeline."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

from pretrain.tools.convert.formats.deepspeed_weights import our_names
from pretrain.tools.convert.lazy_tensor import in_memory

OF_GPT2 = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "seq_length": 32,
    "add_position_embedding": True,
    "use_rotary_position_embeddings": False,
    "normalization": "layernorm",
    "bias_gelu_fusion": True,
    "make_vocab_size_divisible_by": 1,
    "num_experts": [1],
}
OF_LLAMA = OF_GPT2 | {
    "num_key_value_heads": 2,
    "add_position_embedding": False,
    "use_rotary_position_embeddings": True,
    "rope_theta": 500,
    "normalization": "rmsnorm",
    "layernorm_epsilon": 1e-3,
    "swiglu": True,
    "bias_gelu_fusion": False,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
FPDT = {"ds_sequence_parallel_fpdt": False}

NAMES = {
    "transformer.wte": "embedding.word_embeddings",
    "transformer.wpe": "embedding.position_embeddings",
    "transformer.ln_f": "encoder.final_layernorm",
    "transformer.h": "encoder.layers",
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attention.query_key_value",
    "attn.c_proj": "self_attention.dense",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.dense_h_to_4h",
    "mlp.c_proj": "mlp.dense_4h_to_h",
    "model.embed_tokens": "embedding.word_embeddings",
    "model.norm": "encoder.final_layernorm",
    "model.layers": "encoder.layers",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "lm_head": "output_layer",
}
"""Part of a name in transformers -> Megatron's."""


def megatrons_name(name):
    for theirs, megatrons in NAMES.items():
        name = name.replace(theirs, megatrons)
    return f"language_model.{name}"


def rank_of_gpt2(model, rank, ranks, order):
    """Return one rank's weights.

    Args:
        model: GPT2LMHeadModel.
        rank: tensor-parallel.
        ranks: number of them.
        order: of query_key_value's rows: "parts" [q, k, v][head][channel], "heads" [head][q, k, v][channel], or
            "channels" [head][channel][q, k, v].
    """
    heads = model.config.n_head
    found = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = weight.t() if weight.dim() == 2 and name.startswith("transformer.h") else weight
        if "c_attn" in name:
            qkv = value.view(3, heads, -1, *value.shape[1:]).chunk(ranks, 1)[rank]
            axes = {"parts": (0, 1, 2), "heads": (1, 0, 2), "channels": (1, 2, 0)}[order]
            value = qkv.permute(*axes, *range(3, qkv.dim())).reshape(-1, *value.shape[1:])
        elif "wte" in name or "c_fc" in name:
            value = value.chunk(ranks, 0)[rank]
        elif name.endswith("c_proj.weight"):
            value = value.chunk(ranks, 1)[rank]
        found[megatrons_name(name)] = value.clone()
    return found


def rank_of_llama(model, rank, ranks):
    """Return one rank's weights of a LlamaForCausalLM: query groups, and [gate; up]."""
    config = model.config
    found = {}
    for name, weight in _fused(model.state_dict()).items():
        first = weight[0]
        if "query_key_value" in name:
            groups = torch.cat([each.view(config.num_key_value_heads, -1, each.shape[1]) for each in weight], 1)
            value = groups.chunk(ranks, 0)[rank].reshape(-1, first.shape[1])
        elif "dense_h_to_4h" in name:
            value = torch.cat([each.chunk(ranks, 0)[rank] for each in weight])
        elif "embed_tokens" in name or "lm_head" in name:
            value = first.chunk(ranks, 0)[rank]
        elif "o_proj" in name or "down_proj" in name:
            value = first.chunk(ranks, 1)[rank]
        else:
            value = first
        found[megatrons_name(name)] = value.clone()
    return found


def _fused(state):
    """Return by name the weights that are one in Megatron."""
    fused = {}
    for name, weight in state.items():
        qkv = re.sub(r"self_attn\.[qkv]_proj", "self_attention.query_key_value", name)
        fused.setdefault(re.sub(r"mlp\.(gate|up)_proj", "mlp.dense_h_to_4h", qkv), []).append(weight)
    return fused


def save(folder, ranks, args, **client):
    """Write `mp_rank_XX_model_states.pt` (_save_checkpoint in deepspeed/runtime/engine.py) of each rank's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    args = argparse.Namespace(tensor_model_parallel_size=len(ranks), **args)
    for number, weights in enumerate(ranks):
        nested = {}
        for name, tensor in weights.items():  # state_dict_for_save_checkpoint nests the first two levels
            first, second, rest = name.split(".", 2)
            nested.setdefault(first, {}).setdefault(second, {})[rest] = tensor
        state = {
            "module": nested,
            "mp_world_size": len(ranks),
            "dp_world_size": 1,
            "ds_version": "0.14.4",
            "global_steps": 7,
            "args": args,
            **client,
        }
        torch.save(state, folder / f"mp_rank_{number:02d}_model_states.pt")


def by_ours(theirs):
    names = our_names(theirs, Path("theirs"))
    return {names[name]: in_memory(tensor) for name, tensor in theirs.items()}
