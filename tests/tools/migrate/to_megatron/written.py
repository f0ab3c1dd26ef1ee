"""Small recipes with overrides, and the arguments that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.load import make_recipe
from pretrain.tools.migrate.to_megatron.arguments import arguments_of

if TYPE_CHECKING:
    from pretrain.tools.migrate.to_megatron.arguments import Arguments

SMALL = {
    "model": {
        "num_layers": 8,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "activation": "gelu_tanh",
    },
    "tokenizer": {"type": "gpt2", "vocab_file": "vocab.json", "merge_file": "merges.txt"},
    "data": {"path": "corpus", "num_workers": 2},
    "train": {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": 100, "manual_gc": False},
    "optimizer": {"lr": 1e-3},
    "checkpoint": {"save": False},
    "logging": {"tensorboard": False},
}

ALWAYS = (
    *("--num-layers", "8", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--max-position-embeddings", "32", "--attention-softmax-in-fp32"),
    *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "vocab.json", "--merge-file", "merges.txt"),
    *("--data-path", "corpus", "--split", "969,30,1"),
    *("--micro-batch-size", "2", "--global-batch-size", "8", "--train-iters", "100"),
    *("--lr", "0.001", "--eval-interval", "1000", "--log-straggler"),
)


def written(*overrides: str) -> Arguments:
    """Return the arguments of the small recipe with overrides, "section.key=value"."""
    return arguments_of(make_recipe(SMALL, overrides))


def added(*overrides: str) -> list[str]:
    """Return the flags with their values, as lines, that the small recipe does not have without the overrides."""
    plain = written().text.splitlines()
    lines = [line.removesuffix(" \\") for line in written(*overrides).text.splitlines()]
    return [line for line in lines if line not in {one.removesuffix(" \\") for one in plain}]
