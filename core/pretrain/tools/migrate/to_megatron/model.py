"""Flags of the model, the tokenizer and the token files, where several make one key."""

# Sources: core_transformer_config_from_args (megatron/training/argument_utils.py), MLP of
# megatron/core/transformer/mlp.py, and validate_args (megatron/training/arguments.py) for its defaults.

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, given, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.flags import Function

_ATTENTION = {"flash": "flash", "softmax": "unfused"}
_BYTES = 257
"""Tokens of the type bytes: 256, and the last as the end of a document, as NullTokenizer has it."""


def activation(recipe: Recipe) -> Answer:
    """Return the flags of the activation: with biases it is by default the fused bias and GELU, which is gelu_tanh."""
    kind, has_bias = recipe.model.activation, recipe.model.add_bias_linear
    if kind == "swiglu":
        return Answer((given("swiglu"),))
    if kind == "gelu":
        return Answer((given("bias_gelu_fusion", False),))
    # without biases nothing is fused, and the unfused GELU of Megatron-LM is exact, but that of Transformer Engine
    return when(not has_bias, "use_te_activation_func")


def ffn_hidden_size(recipe: Recipe) -> Answer:
    """Return the width of the MLP, if it is another than the default."""
    model = recipe.model
    default = 8 * model.hidden_size // 3 // 64 * 64 if model.activation == "swiglu" else 4 * model.hidden_size
    return when(model.ffn_hidden_size != default, "ffn_hidden_size", model.ffn_hidden_size)


def _kv_channels(recipe: Recipe) -> Answer:
    model = recipe.model
    return when(model.kv_channels * model.num_attention_heads != model.hidden_size, "kv_channels", model.kv_channels)


def num_query_groups(recipe: Recipe) -> Answer:
    """Return the key/value heads, with the switch without which they are not read."""
    groups = recipe.model.num_query_groups
    if groups == recipe.model.num_attention_heads:
        return NOTHING
    return Answer((given("group_query_attention"), given("num_query_groups", groups)))


def window_size(recipe: Recipe) -> Answer:
    """Return the window: the keys before a token's own, and none after it."""
    window = recipe.model.window_size
    return NOTHING if window is None else Answer((given("window_size", f"{window - 1},0"),))


def attention_softmax_in_fp32(recipe: Recipe) -> Answer:
    """Return the flag of the softmax's dtype; a fused one would compute in fp32."""
    if recipe.model.attention_softmax_in_fp32:
        return Answer((given("attention_softmax_in_fp32"),))
    return Answer((given("masked_softmax_fusion", False),))


def _attention(recipe: Recipe) -> Answer:
    kind = recipe.kernels.attention
    if kind == "auto":
        return NOTHING
    if kind not in _ATTENTION:
        return Answer(change="Transformer Engine chooses the kernel of attention")
    return Answer((given("attention_backend", _ATTENTION[kind]),))


def tokenizer_type(recipe: Recipe) -> Answer:
    """Return the type; for bytes the one that reads no text, as a training needs none."""
    classes = {"gpt2": "GPT2BPETokenizer", "huggingface": "HuggingFaceTokenizer"}
    if recipe.tokenizer.type in classes:
        return Answer((given("tokenizer_type", classes[recipe.tokenizer.type]),))
    flags = (given("tokenizer_type", "NullTokenizer"), given("vocab_size", _BYTES))
    return Answer(flags, "NullTokenizer is used instead: it has the same ids, but no text")


def tokenizer_file(recipe: Recipe) -> Answer:
    """Return the folder in which the tokenizer.json is; Hugging Face's classes read no file of another name."""
    file = recipe.tokenizer.file
    if file is None or recipe.tokenizer.type != "huggingface":
        return NOTHING
    path = PurePosixPath(file)
    folder = str(path.parent)
    if path.name == "tokenizer.json" and str(path) == file and not folder.endswith((".json", ".model")):
        return Answer((given("tokenizer_model", folder),))
    change = "Hugging Face's AutoTokenizer reads a folder in which the file is called tokenizer.json: put it into one"
    return Answer((given("tokenizer_model", file),), change)


def _of_gpt2(recipe: Recipe, name: str, file: str | None) -> Answer:
    return when(file is not None and recipe.tokenizer.type == "gpt2", name, file)


def blend(recipe: Recipe) -> Answer:
    """Return several token files, each after its weight."""
    parts = recipe.data.blend or ()
    words: list[str] = []
    for part in parts:
        words += [repr(part.weight), f"./{part.path}" if part.path.startswith("-") else part.path]
    return when(recipe.data.blend is not None, "data_path", *words)


def reset_attention_mask(recipe: Recipe) -> Answer:
    """Return the flag with which fused attention, too, sees one document; it starts positions again with each."""
    if not recipe.data.reset_attention_mask:
        return NOTHING
    if recipe.data.reset_position_ids or recipe.model.position_embedding_type == "rope":
        return Answer((given("dataloader_inter_document_masking"),))
    change = (
        "only unfused attention looks at the mask there; --dataloader-inter-document-masking would reset positions too"
    )
    return Answer((given("reset_attention_mask"),), change)


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.kv_channels": _kv_channels,
    "model.num_query_groups": num_query_groups,
    "model.window_size": window_size,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "kernels.attention": _attention,
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": lambda recipe: _of_gpt2(recipe, "vocab_file", recipe.tokenizer.vocab_file),
    "tokenizer.merge_file": lambda recipe: _of_gpt2(recipe, "merge_file", recipe.tokenizer.merge_file),
    "tokenizer.file": tokenizer_file,
    "data.path": lambda recipe: when(recipe.data.path is not None, "data_path", recipe.data.path),
    "data.blend": blend,
    "data.split": lambda recipe: Answer((given("split", "".join(recipe.data.split.split())),)),  # it warns without
    "data.reset_attention_mask": reset_attention_mask,
}
