"""Flags of the model, the tokenizer and the token files, where several make one key."""

# Sources: core_transformer_config_from_args (megatron/training/argument_utils.py), MLP of
# megatron/core/transformer/mlp.py, and validate_args (megatron/training/arguments.py) for its defaults.

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, given, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.data import BlendPart
    from pretrain.tools.migrate.to_megatron.flags import Function

_ATTENTION = {"flash": "flash", "softmax": "unfused"}
_RATED = 2  # experts by which a group is rated here
_COEFFICIENT = "moe_aux_loss_coeff"
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
    if recipe.parallel.context_parallel_size > 1 and _ATTENTION[kind] == "unfused":
        return Answer(change="only fused attention shares a sequence there; Transformer Engine chooses the kernel")
    return Answer((given("attention_backend", _ATTENTION[kind]),))


def context_parallel_size(recipe: Recipe) -> Answer:
    """Return the size; masked tokens weigh otherwise where each rank takes the mean of its own."""
    size = recipe.parallel.context_parallel_size
    is_masked = recipe.data.eod_mask_loss and not recipe.train.calculate_per_token_loss
    change = "the loss of a sequence is the mean of its ranks' means there, whatever tokens they mask" * is_masked
    return NOTHING if size == 1 else Answer((given("context_parallel_size", size),), change)


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
    return when(recipe.data.blend is not None, "data_path", *_weighted(recipe.data.blend or ()))


def _own_files(recipe: Recipe, key: str) -> Answer:
    blend: tuple[BlendPart, ...] = getattr(recipe.data, key) or ()
    words = _weighted(blend)
    return when(bool(blend), key, *(words if len(blend) > 1 else words[1:]))


def _weighted(parts: tuple[BlendPart, ...]) -> list[str]:
    words = []
    for part in parts:
        words += [repr(part.weight), f"./{part.path}" if part.path.startswith("-") else part.path]
    return words


def _split(recipe: Recipe) -> Answer:
    if recipe.data.own_files is not None:
        return NOTHING
    return Answer((given("split", "".join(recipe.data.split.split())),))  # it warns without


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


def num_experts(recipe: Recipe) -> Answer:
    """Return the experts, and that the router computes in fp32, as it does here."""
    experts = recipe.model.num_experts
    if experts is None:
        return NOTHING
    return Answer((given("num_experts", experts), given("moe_router_dtype", "fp32")))


def moe_layer_freq(recipe: Recipe) -> Answer:
    """Return the layers with experts, as a number where one says them, else as a list of 0 and 1."""
    model, has_experts = recipe.model, recipe.model.layers_with_experts
    if model.num_experts is None or all(has_experts):
        return NOTHING
    number, first = model.moe_layer_freq, model.first_k_dense_replace
    if tuple(layer % number == 0 for layer in range(model.num_layers)) == has_experts:
        return Answer((given("moe_layer_freq", number),))
    rest = (
        f"[1]*{model.num_layers - first}" if number == 1 else str(list(map(int, has_experts[first:]))).replace(" ", "")
    )
    return Answer((given("moe_layer_freq", f"([0]*{first}+{rest})"),))


def num_groups(recipe: Recipe) -> Answer:
    """Return the groups; there a group is rated by as many experts as a token has of each of its groups."""
    model = recipe.model
    groups, best = model.moe_router_num_groups, model.moe_router_group_topk
    if model.num_experts is None or groups is None or best is None:
        return NOTHING
    rated = model.moe_router_topk // best
    change = "" if rated == _RATED else f"a group is rated there by its best {rated} experts: it is another model"
    return Answer((given("moe_router_num_groups", groups),), change)


def _scaling_factor(recipe: Recipe) -> Answer:
    factor = recipe.model.moe_router_topk_scaling_factor
    return when(recipe.model.num_experts is not None and factor != 1.0, "moe_router_topk_scaling_factor", factor)


def _aux_loss_coeff(recipe: Recipe) -> Answer:
    model = recipe.model
    is_loss = model.num_experts is not None and model.moe_router_load_balancing_type != "none"
    return when(is_loss, _COEFFICIENT, model.moe_aux_loss_coeff)


def _capacity_factor(recipe: Recipe) -> Answer:
    factor = recipe.model.moe_expert_capacity_factor
    if factor is None:
        return NOTHING
    change = "evaluations drop tokens there too"
    if recipe.parallel.tensor_model_parallel_size > 1:
        change += ", and each tensor-parallel rank counts its own"
    if recipe.model.moe_router_enable_expert_bias:
        change += ", and the bias follows from what experts compute, not from what tokens choose"
    return Answer((given("moe_expert_capacity_factor", factor),), change)


def _load_balancing(recipe: Recipe) -> Answer:
    model = recipe.model
    is_there = model.num_experts is not None and model.moe_router_load_balancing_type != "aux_loss"
    return when(is_there, "moe_router_load_balancing_type", model.moe_router_load_balancing_type)


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.num_experts": num_experts,
    "model.moe_layer_freq": moe_layer_freq,
    "model.first_k_dense_replace": lambda _: NOTHING,  # moe_layer_freq has the flag
    "model.moe_router_num_groups": num_groups,
    "model.moe_router_topk_scaling_factor": _scaling_factor,
    "model.moe_expert_capacity_factor": _capacity_factor,
    "model.moe_aux_loss_coeff": _aux_loss_coeff,
    "model.moe_router_load_balancing_type": _load_balancing,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.kv_channels": _kv_channels,
    "model.num_query_groups": num_query_groups,
    "model.window_size": window_size,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "parallel.context_parallel_size": context_parallel_size,
    "kernels.attention": _attention,
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": lambda recipe: _of_gpt2(recipe, "vocab_file", recipe.tokenizer.vocab_file),
    "tokenizer.merge_file": lambda recipe: _of_gpt2(recipe, "merge_file", recipe.tokenizer.merge_file),
    "tokenizer.file": tokenizer_file,
    "data.path": lambda recipe: when(recipe.data.path is not None, "data_path", recipe.data.path),
    "data.blend": blend,
    **{f"data.{key}": partial(_own_files, key=key) for key in ("train_data_path", "valid_data_path", "test_data_path")},
    "data.split": _split,
    "data.reset_attention_mask": reset_attention_mask,
}
