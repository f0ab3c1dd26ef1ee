"""Models of transformers as GPT-NeoX and Megatron-DeepSpeed's pipelines store them, by the sources of their formats."""

from __future__ import annotations

import torch
import yaml

from tools.convert.formats.hugging_face_models import HEADS, HIDDEN, VOCAB
from tools.convert.formats.megatron_files import detached, divided, gpt2_layer

HEAD = HIDDEN // HEADS
ARGS = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "padded_vocab_size": VOCAB}
CONFIG = {
    "num-layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
    "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": True, "gpt_j_residual": True, "bias-gelu-fusion": True,
    "attention_config": [[["flash", "global"], 1]], "use_qk_layernorm": False,
}  # fmt: skip
LLAMA_CONFIG = CONFIG | {
    "rotary_pct": 1.0, "rotary_emb_base": 500, "norm": "rmsnorm", "rms_norm_epsilon": 1e-3, "num_kv_heads": 2,
    "gpt_j_residual": False, "activation": "swiglu", "use_bias_in_mlp": False,
}  # fmt: skip
GIVEN = {"activation": "gelu_tanh", "parallel_residual": True}
NEOX = {
    "position_embedding_type": "rope",
    "rotary_percent": 0.5,
    "untie_embeddings_and_output_weights": True,
    "parallel_residual": True,
}
LLAMA = NEOX | {
    "parallel_residual": False,
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "num_query_groups": 2,
    "add_bias_linear": False,
}


def store(folder, modules, ranks, states=None, config=None):
    """Write the files of a checkpoint.

    Args:
        folder: where.
        modules: number of a module -> its weights on a rank.
        ranks: tensor-parallel ones.
        states: what else mp_rank_00_model_states.pt holds; None: there is no such file.
        config: content of configs/model.yml.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in modules.items():
        for rank in range(ranks):
            torch.save(part(rank), folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    if states is not None:
        torch.save({"module": None} | states, folder / "mp_rank_00_model_states.pt")
    if config is not None:
        (folder / "configs").mkdir()
        (folder / "configs" / "model.yml").write_text(yaml.safe_dump(config))
    return folder


def neox_modules(model, ranks, names=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), share=1.0):
    """Return a GPT-NeoX as it was stored until September 2024; biases after a reduction are times `share`."""

    def layer(number):
        theirs = model.gpt_neox.layers[number]

        def part(rank):
            held = {"attention.rotary_emb.inv_freq": torch.zeros(model.gpt_neox.rotary_emb.inv_freq.shape)}
            for ours, linear, dim in (
                ("attention.query_key_value", theirs.attention.query_key_value, 0),
                (names[0], theirs.mlp.dense_h_to_4h, 0),
                ("attention.dense", theirs.attention.dense, 1),
                (names[1], theirs.mlp.dense_4h_to_h, 1),
            ):
                held[f"{ours}.weight"] = divided(linear.weight, dim, rank, ranks)
                held[f"{ours}.bias"] = divided(linear.bias, 0, rank, ranks) if dim == 0 else linear.bias * share
            for norm in ("input_layernorm", "post_attention_layernorm"):
                # The ranks' differ by as much in both directions, as when they drifted apart.
                drift = 0.25 * (rank - (ranks - 1) / 2)
                held[f"{norm}.weight"] = getattr(theirs, norm).weight + drift
                held[f"{norm}.bias"] = getattr(theirs, norm).bias
            return detached(held)

        return part

    layers = model.config.num_hidden_layers
    final, words, output = model.gpt_neox.final_layer_norm, model.gpt_neox.embed_in.weight, model.lm_head.weight
    return {
        0: lambda rank: detached({"word_embeddings.weight": divided(words, 0, rank, ranks)}),
        **{number + 2: layer(number) for number in range(layers)},
        layers + 3: lambda rank: detached({"norm.weight": final.weight, "norm.bias": final.bias}),
        layers + 4: lambda rank: detached({"final_linear.weight": divided(output, 0, rank, ranks)}),
    }


def llama_qkv(attention, rank, ranks, groups, *, is_sliced):
    """Return one rank's rows: all queries, keys, values, or those of each head with its slice of keys and values."""
    query, key, value = (
        divided(getattr(attention, f"{name}_proj").weight.detach(), 0, rank, ranks) for name in ("q", "k", "v")
    )
    if not is_sliced:
        return torch.cat([query, key, value])
    heads, rows = HEADS // ranks, HEAD * groups // HEADS
    found = []
    for head in range(heads):
        found.append(query[head * HEAD : (head + 1) * HEAD])
        found += [each[head * rows : (head + 1) * rows] for each in (key, value)]
    return torch.cat(found)


def llama_modules(model, ranks, *, is_late):
    """Return a Llama with the names and orders since November 2024, or with those of the Llama MLP before."""
    groups = model.config.num_key_value_heads

    def layer(number):
        theirs = model.model.layers[number]

        def part(rank):
            gate, up, down = (getattr(theirs.mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
            gate, up, down = (divided(each, dim, rank, ranks) for each, dim in ((gate, 0), (up, 0), (down, 1)))
            mlp = {"linear1": torch.cat([up, gate]), "linear2": down} if is_late else {"w1": gate, "w3": up, "w2": down}
            qkv = llama_qkv(theirs.self_attn, rank, ranks, groups, is_sliced=not is_late)
            held = {
                "input_layernorm.scale": theirs.input_layernorm.weight,
                "post_attention_layernorm.scale": theirs.post_attention_layernorm.weight,
                "attention.query_key_value.weight": qkv,
                "attention.dense.weight": divided(theirs.self_attn.o_proj.weight, 1, rank, ranks),
            }
            return detached(held | {f"mlp.{name}.weight": weight for name, weight in mlp.items()})

        return part

    layers = model.config.num_hidden_layers
    words, output, final = model.model.embed_tokens.weight, model.lm_head.weight, model.model.norm.weight
    return {
        0: lambda rank: detached({"word_embeddings.weight": divided(words, 0, rank, ranks)}),
        **{number + 2: layer(number) for number in range(layers)},
        layers + 3: lambda rank: detached({"norm.scale": final}),
        layers + 4: lambda rank: detached({"final_linear.weight": divided(output, 0, rank, ranks)}),
    }


def rms_norm_until_2025(self, x):
    """Compute GPT-NeoX's RMSNorm before 4c9f1081, in place of LlamaRMSNorm.forward."""
    rms = x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** (-1.0 / 2)
    return self.weight * (x / (rms + self.variance_epsilon))


def megatron_deepspeed_modules(model, ranks, version, between=1):
    """Return a GPT-2 as GPTModelPipe stores it, with the tied embedding once more at the end.

    Modules without weights are `between` embedding and layers, and as many after these: one in bigscience's, none in
    Microsoft's since 2023.
    """
    layers = model.config.n_layer
    final = model.transformer.ln_f

    def embedding(rank):
        words, positions = model.transformer.wte.weight, model.transformer.wpe.weight
        words = divided(words, 0, rank, ranks)
        return detached({"word_embeddings.weight": words, "position_embeddings.weight": positions})

    def layer(number):
        return lambda rank: gpt2_layer(model, number, rank, ranks, version)

    return {
        1: embedding,
        **{number + 2 + between: layer(number) for number in range(layers)},
        layers + 2 + 2 * between: lambda rank: detached({"weight": final.weight, "bias": final.bias}),
        layers + 3 + 2 * between: embedding,
    }


def gated(part, *, is_last):
    """Return a rank's weights of a layer as one whose first matrix has gate and up rows, or up and gate rows."""
    if "mlp.dense_4h_to_h.weight" not in part:
        return part
    narrow = {"mlp.dense_4h_to_h.weight": part["mlp.dense_4h_to_h.weight"].chunk(2, dim=1)[0].clone()}
    first = {name: weight for name, weight in part.items() if "dense_h_to_4h" in name}
    exchanged = {name: torch.cat(weight.chunk(2)[::-1]) for name, weight in first.items()} if is_last else {}
    return part | narrow | exchanged
