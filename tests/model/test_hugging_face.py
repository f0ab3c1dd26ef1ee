"""Logits of the whole model against Hugging Face's GPT-2 and GPT-NeoX, with the same weights in fp32."""

from __future__ import annotations

import pytest
import torch
import transformers

from engine import tiny
from engine.layouts import NEOX

SAME = ("model.num_layers=3", "model.make_vocab_size_divisible_by=1")
TOKENS = list(range(40, 65))

GPT2 = transformers.GPT2Config(
    vocab_size=tiny.VOCAB_SIZE,
    n_positions=32,
    n_embd=64,
    n_layer=3,
    n_head=4,
    activation_function="gelu_new",
    layer_norm_epsilon=1e-5,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    attn_pdrop=0.0,
)
GPT_NEOX = transformers.GPTNeoXConfig(
    vocab_size=tiny.VOCAB_SIZE,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    hidden_act="gelu",
    rotary_pct=0.25,
    rotary_emb_base=10000,
    max_position_embeddings=32,
    layer_norm_eps=1e-5,
    use_parallel_residual=True,
    tie_word_embeddings=False,
    attention_dropout=0.0,
    hidden_dropout=0.0,
)

NAMES = {
    "gpt_neox.embed_in": "embedding.word_embeddings",
    "gpt_neox.final_layer_norm": "decoder.final_layernorm",
    "lm_head": "output_layer",
    "gpt_neox.layers": "decoder.layers",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "attention.query_key_value": "self_attention.linear_qkv",
    "attention.dense": "self_attention.linear_proj",
    "mlp.dense_h_to_4h": "mlp.linear_fc1",
    "mlp.dense_4h_to_h": "mlp.linear_fc2",
    "transformer.wte": "embedding.word_embeddings",
    "transformer.wpe": "embedding.position_embeddings",
    "transformer.ln_f": "decoder.final_layernorm",
    "transformer.h": "decoder.layers",
    "ln_1": "input_layernorm",
    "ln_2": "pre_mlp_layernorm",
    "attn.c_attn": "self_attention.linear_qkv",
    "attn.c_proj": "self_attention.linear_proj",
    "mlp.c_fc": "mlp.linear_fc1",
    "mlp.c_proj": "mlp.linear_fc2",
}
"""Megatron's part of a parameter's name by Hugging Face's."""


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (GPT2, ("model.activation=gelu_tanh",)),
        (GPT_NEOX, (*NEOX, "model.embedding_layernorm=false")),
    ],
    ids=["GPT-2", "GPT-NeoX"],
)
def test_logits_are_those_of_hugging_faces_model(config, model):
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    with tiny.engine_of(tiny.tiny(*SAME, *model)) as engine, torch.no_grad():
        ours = dict(engine.chunks[0].module.named_parameters())
        for number, weight in enumerate(ours.values()):  # perturbed, because biases start at zero and norms at one
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)), alpha=0.05)
        taken = {name: ours[megatrons_name(name)] for name, _ in theirs.named_parameters()}
        assert len(taken) == len(ours)
        for name, weight in theirs.named_parameters():
            weight.copy_(as_theirs(taken[name], name))
        logits = theirs(torch.tensor([TOKENS])).logits[0, -1]
        torch.testing.assert_close(engine.next_token_logits(TOKENS), logits, rtol=0, atol=1e-5)


def as_theirs(weight, name):
    """GPT-2 there multiplies from the left, and has all queries first, then keys, then values, instead of by head."""
    if not name.startswith("transformer.h"):
        return weight
    if "attn.c_attn" in name:
        heads, rest = GPT2.n_head, weight.shape[1:]
        weight = weight.view(heads, 3, -1, *rest).transpose(0, 1).reshape(-1, *rest)
    return weight.t() if weight.dim() == 2 else weight


def megatrons_name(name):
    """Translate Hugging Face's name of a parameter."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name
