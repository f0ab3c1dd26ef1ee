"""Rival of `pretrain checkpoint convert`: a GPT-NeoX checkpoint for Hugging Face, all of it in memory.

After tools/ckpts/convert_neox_to_hf.py of GPT-NeoX: every layer's files of all ranks are loaded and merged into a model
of transformers, which is saved at the end.

    python convert_all_at_once.py SOURCE TARGET
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


def main(source: Path, target: Path) -> None:
    states = [torch.load(path) for path in sorted(source.glob("mp_rank_*"))]
    args, ranks = states[0]["args"], len(states)
    layers, hidden = args["num_layers"], args["hidden_size"]
    config = GPTNeoXConfig(
        vocab_size=args["padded_vocab_size"], hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=args["num_attention_heads"], intermediate_size=4 * hidden, hidden_act="gelu_fast",
        max_position_embeddings=args["max_position_embeddings"], use_parallel_residual=args["gpt_j_residual"],
        rotary_pct=args["rotary_pct"], rotary_emb_base=args["rotary_emb_base"], tie_word_embeddings=False,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config).half()

    def parts(number: int) -> list[dict[str, torch.Tensor]]:
        return [
            torch.load(source / f"layer_{number:02d}-model_{rank:02d}-model_states.pt", map_location="cpu")
            for rank in range(ranks)
        ]

    model.gpt_neox.embed_in.load_state_dict({"weight": joined(parts(0), "word_embeddings.weight", 0)})
    for number in range(layers):
        found, state = parts(number + 2), {}
        for name in ("attention.dense.weight", "mlp.dense_4h_to_h.weight"):
            state[name] = joined(found, name, 1)
        for module in ("attention.query_key_value", "mlp.dense_h_to_4h"):
            state |= {f"{module}.{kind}": joined(found, f"{module}.{kind}", 0) for kind in ("weight", "bias")}
        for name in ("attention.dense.bias", "mlp.dense_4h_to_h.bias"):
            state[name] = sum(part[name] for part in found)
        for module in ("input_layernorm", "post_attention_layernorm"):
            for kind in ("weight", "bias"):
                state[f"{module}.{kind}"] = sum(part[f"{module}.{kind}"] for part in found) / ranks
        model.gpt_neox.layers[number].load_state_dict(state, strict=False)
    norm = parts(layers + 3)
    model.gpt_neox.final_layer_norm.load_state_dict(
        {kind: sum(part[f"norm.{kind}"] for part in norm) / ranks for kind in ("weight", "bias")}
    )
    model.get_output_embeddings().load_state_dict({"weight": joined(parts(layers + 4), "final_linear.weight", 0)})
    model.save_pretrained(target)


def joined(found: list[dict[str, torch.Tensor]], name: str, dim: int) -> torch.Tensor:
    return torch.cat([part[name] for part in found], dim)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
