"""Loss and gradients of the whole model against plain torch in float64, and against Hugging Face's GPT-NeoX."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.layouts import LLAMA, NEOX
from model import plain

SMALL = ("model.num_layers=3", "train.global_batch_size=4", "optimizer.clip_grad=0")
MODELS = {
    "GPT-2": (),
    "GPT-2, tanh": (
        "model.activation=gelu_tanh",
        "model.layernorm_epsilon=1e-3",
        "model.make_vocab_size_divisible_by=1",
    ),
    "GPT-3, layer scaling": ("model.apply_query_key_layer_scaling=true",),
    "NeoX": NEOX,
    "NeoX, whole heads": (
        *NEOX,
        "model.rotary_percent=1.0",
        "model.rotary_base=500",
        "model.embedding_layernorm=false",
    ),
    "Llama": LLAMA,
    "Llama, wide heads": (*LLAMA, "model.kv_channels=32", "model.num_query_groups=1", "model.ffn_hidden_size=96"),
    "no biases": ("model.add_bias_linear=false",),
    "embedding norm": ("model.embedding_layernorm=true", "model.normalization=RMSNorm"),
    "documents apart": ("data.reset_attention_mask=true",),
    "softmax kernel": ("kernels.attention=softmax",),
    "triangle kernel": ("kernels.attention=triangle", "kernels.triangle_block_size=8"),
}


def disturb(engine):
    """Move every weight off its start, where biases are zero and norms one; return them in float64 by name."""
    generator = torch.Generator().manual_seed(11)
    named = dict(engine.chunks[0].module.named_parameters())
    with torch.no_grad():
        for parameter in named.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return named, {name: parameter.detach().double().requires_grad_() for name, parameter in named.items()}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_plain_torch(name):
    recipe = tiny.tiny(*SMALL, *MODELS[name])
    with tiny.engine_of(recipe) as engine:
        named, weights = disturb(engine)
        (batch,) = tiny.micro_batches(recipe, 0)
        step = engine.train_step(iter([batch]), 1)
    losses = plain.losses(weights, recipe, tiny.VOCAB_SIZE, batch["tokens"], batch["labels"], batch["attention_mask"])
    expected = (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    expected.backward()
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = {name: weight.grad for name, weight in weights.items()}
    for parameter_name, gradient in gradients.items():
        # As precise as fp32 is: relative to the largest entry.
        torch.testing.assert_close(
            named[parameter_name].main_grad.double(),
            gradient,
            rtol=0,
            atol=1e-5 * gradient.abs().max().item(),
            msg=lambda message, of=parameter_name: f"{of}: {message}",
        )
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert step.grad_norm.item() == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("model", [(), NEOX], ids=["tied", "untied"])
def test_the_padding_of_the_vocabulary_has_no_influence(model):
    def train(multiple):
        with tiny.engine_of(tiny.tiny(*SMALL, *model, f"model.make_vocab_size_divisible_by={multiple}")) as engine:
            return tiny.train(engine, 0, 3)

    none, some = train(1), train(512)
    assert some == [pytest.approx(step, rel=1e-6) for step in none]


def test_logits_are_those_of_hugging_faces_neox():
    transformers = pytest.importorskip("transformers")
    overrides = ("model.embedding_layernorm=false", "model.make_vocab_size_divisible_by=1")
    recipe = tiny.tiny(*SMALL, *NEOX, *overrides)
    config = transformers.GPTNeoXConfig(
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
    theirs = transformers.GPTNeoXForCausalLM(config).eval()
    with tiny.engine_of(recipe) as engine:
        ours, _ = disturb(engine)
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                weight.copy_(ours[megatrons_name(name)])
            tokens = list(range(40, 65))
            logits = theirs(torch.tensor([tokens])).logits[0, -1]
        torch.testing.assert_close(engine.next_token_logits(tokens), logits, rtol=0, atol=1e-5)


def megatrons_name(name):
    """Translate Hugging Face's name of a parameter of GPT-NeoX."""
    for theirs, ours in {
        "gpt_neox.embed_in": "embedding.word_embeddings",
        "gpt_neox.final_layer_norm": "decoder.final_layernorm",
        "embed_out": "output_layer",
        "lm_head": "output_layer",  # since transformers 5
        "gpt_neox.layers": "decoder.layers",
        "post_attention_layernorm": "pre_mlp_layernorm",
        "attention.query_key_value": "self_attention.linear_qkv",
        "attention.dense": "self_attention.linear_proj",
        "mlp.dense_h_to_4h": "mlp.linear_fc1",
        "mlp.dense_4h_to_h": "mlp.linear_fc2",
    }.items():
        name = name.replace(theirs, ours)
    return name
