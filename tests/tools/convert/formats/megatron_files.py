"""Models of transformers as Megatron-LM and its forks store them, written from the public sources of their formats."""

from __future__ import annotations

import argparse

import torch
import transformers

from tools.convert.formats.hugging_face_models import GPT2, HEADS, HIDDEN, NO_DROPOUT, POSITIONS, VOCAB

LAYERS = 4  # enough for two stages of two chunks
GPT2_CONFIG = transformers.GPT2Config(**GPT2 | {"n_layer": LAYERS}, **NO_DROPOUT)
HEAD = HIDDEN // HEADS
NAMES_2019 = ("transformer", "attention", "layernorm")
NAMES_2022 = ("encoder", "self_attention", "layernorm")
NAMES_2024 = ("encoder", "self_attention", "norm")
QKV = {
    0: lambda q, k, v: torch.cat([q, k, v]),
    1.0: lambda q, k, v: torch.stack([q, k, v], 1).flatten(0, 1),
    3.0: lambda q, k, v: torch.stack([each.unflatten(0, (-1, HEAD)) for each in (q, k, v)], 1).flatten(0, 2),
}
"""Version -> one rank's rows of queries, keys and values [heads on the rank * HEAD, ...] in its order."""


def arguments(**others):
    always = {
        "num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": POSITIONS,
        "max_position_embeddings": POSITIONS, "padded_vocab_size": VOCAB, "bias_gelu_fusion": True,
    }  # fmt: skip
    return argparse.Namespace(**always | others)


def divided(tensor, dim, rank, ranks):
    return tensor.chunk(ranks, dim)[rank].clone()


def gpt2_layer(model, number, rank, ranks, version, names=NAMES_2022):
    """Return one rank's part of a layer of a GPT-2, with the names that a layer has in Megatron-LM."""
    layer = model.transformer.h[number]
    _, attention, norm = names
    part = {
        f"input_{norm}.weight": layer.ln_1.weight,
        f"input_{norm}.bias": layer.ln_1.bias,
        f"post_attention_{norm}.weight": layer.ln_2.weight,
        f"post_attention_{norm}.bias": layer.ln_2.bias,
        f"{attention}.dense.weight": divided(layer.attn.c_proj.weight.T, 1, rank, ranks),
        f"{attention}.dense.bias": layer.attn.c_proj.bias,
        "mlp.dense_h_to_4h.weight": divided(layer.mlp.c_fc.weight.T, 0, rank, ranks),
        "mlp.dense_h_to_4h.bias": divided(layer.mlp.c_fc.bias, 0, rank, ranks),
        "mlp.dense_4h_to_h.weight": divided(layer.mlp.c_proj.weight.T, 1, rank, ranks),
        "mlp.dense_4h_to_h.bias": layer.mlp.c_proj.bias,
    }
    for kind, whole in (("weight", layer.attn.c_attn.weight.T), ("bias", layer.attn.c_attn.bias)):
        three = [divided(each, 0, rank, ranks) for each in whole.chunk(3)]
        part[f"{attention}.query_key_value.{kind}"] = QKV[version](*three)
    return detached(part)


def detached(part):
    return {name: tensor.detach().clone() for name, tensor in part.items()}


def gpt2_chunk(model, layers, rank, ranks, version, names, *, is_first, is_last):
    """Return one rank's chunk of the model, with the layers of these numbers."""
    stack, _, norm = names
    held = {}
    for local, number in enumerate(layers):
        part = gpt2_layer(model, number, rank, ranks, version, names)
        held |= {f"layers.{local}.{name}": tensor for name, tensor in part.items()}
    words = {"weight": divided(model.transformer.wte.weight.detach(), 0, rank, ranks)}
    if is_last:
        held |= {f"final_{norm}.{kind}": getattr(model.transformer.ln_f, kind).detach() for kind in ("weight", "bias")}
    chunk = {"language_model": {stack: held}}
    if is_first:
        positions = {"weight": model.transformer.wpe.weight.detach()}
        chunk["language_model"]["embedding"] = {"word_embeddings": words, "position_embeddings": positions}
    elif is_last:
        chunk["word_embeddings_for_head"] = words
    return chunk


def gpt2(model, folder, version, names, ranks=1, stages=1, chunks=1, args=None):
    """Write a GPT-2 as one of Megatron-LM's training checkpoints."""
    size = LAYERS // (stages * chunks)
    for rank in range(ranks):
        for stage in range(stages):
            state = {"iteration": 30} | ({} if args is None else {"args": args})
            state |= {} if version == 0 else {"checkpoint_version": version}
            for chunk in range(chunks):
                first = chunk * (LAYERS // chunks) + stage * size
                ends = {"is_first": first == 0, "is_last": first + size == LAYERS}
                layers = range(first, first + size)
                key = f"model{chunk}" if chunks > 1 else "model"
                state[key] = gpt2_chunk(model, layers, rank, ranks, version, names, **ends)
            place = folder / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else ""))
            place.mkdir(parents=True)
            torch.save(state, place / "model_optim_rng.pt")
    return folder
