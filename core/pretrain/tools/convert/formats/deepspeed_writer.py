"""Weights of ours as a universal checkpoint of DeepSpeed, with the names of microsoft's Megatron-DeepSpeed.

    latest_universal, latest                                   name of the folder
    global_stepN/mp_rank_00_model_states.pt                    settings and progress, without weights
    global_stepN/zero_pp_rank_0_mp_rank_00_model_states.pt     the same, which ZeRO-3 looks for
    global_stepN/zero/NAME/fp32.pt                             a weight, whole
    global_stepN/zero/optimizer_state.pt                       what loading needs of an optimizer without state

Read by `load_hp_checkpoint_state` in deepspeed/checkpoint/universal_checkpoint.py and, for ZeRO-3, by the function of
that name in deepspeed/runtime/zero/stage3.py; the files are named by `_get_ckpt_name` in deepspeed/runtime/engine.py.
There are no moments of Adam: ZeRO 1 and 2 start them at zero when a weight has only fp32.pt. ZeRO-3 wants them, unless
`load_checkpoint` is called with load_module_only=True.

The rows of query_key_value are those of Megatron-DeepSpeed since 676a482c of December 2024, [q, k, v][head][channel]
(ParallelAttention.forward in megatron/model/transformer.py). For grouped queries, which it has not computed since, they
are those of before: ours.
"""

from __future__ import annotations

import argparse
import io
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError
from pretrain.tools.convert.file_writers import TorchFile
from pretrain.tools.convert.formats import deepspeed_weights
from pretrain.tools.convert.formats.megatron_settings import require_none, rests_on_ranks
from pretrain.tools.convert.lazy_tensor import cast
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.model_weights import EMBEDDING, LATEST_OF_DEEPSPEED, OUTPUT
from pretrain.tools.convert.rank_parts import is_gated, to_parts_first
from pretrain.tools.convert.target import Target
from pretrain.tools.convert.weight_names import divided_dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import FileLayout, ModelWeights

_VERSION = "0.19.8"  # of the DeepSpeed whose files these are; its loader requires one
_UNIVERSAL_VERSION = 0.4  # UNIVERSAL_CHECKPOINT_VERSION_VALUE in deepspeed/checkpoint/constants.py


def write(weights: ModelWeights, layout: FileLayout) -> Target:
    """Return the files, with fp32 weights, of a folder that `deepspeed` loads with checkpoint.load_universal."""
    _require_theirs(weights.model, layout)
    padded = weights.padded_for(layout.tensor)
    # DeepSpeed pads a vocabulary for its ranks and takes none away; ZeRO-3, which has one, pads none.
    whole = padded if layout.tensor == 1 else weights.with_vocabulary(weights.tokens)
    folder = f"global_step{weights.iteration or 0}"
    universal = f"{folder}/{deepspeed_weights.UNIVERSAL}"
    files = []
    for name, tensor in whole.tensors.items():
        path = f"{universal}/{deepspeed_weights.their_name(name)}/{deepspeed_weights.FILE}"
        files.append(TorchFile(path, _content(name, tensor, weights.model)))
    small = {
        # as many groups as there can be, since load_hp_checkpoint_state_from_checkpoint_dir in deepspeed's
        # runtime/base_optimizer.py goes through those that are here and in the optimizer; none changes a setting
        f"{universal}/optimizer_state.pt": _saved(
            {"ds_version": _VERSION, "param_groups": [{"params": []} for _ in files]}
        ),
        LATEST_OF_DEEPSPEED: folder.encode(),
        "latest_universal": folder.encode(),
    }
    for rank in range(layout.tensor):
        state = _saved(_state(padded, weights.tokens, layout))
        small[f"{folder}/mp_rank_{rank:02d}_model_states.pt"] = state
        small[f"{folder}/zero_pp_rank_0_mp_rank_{rank:02d}_model_states.pt"] = state
    return Target(files=files, small=small, folder=folder)


def _require_theirs(model: ModelSection, layout: FileLayout) -> None:
    require_none("Megatron-DeepSpeed", not_held("deepspeed", model), rests_on_ranks(model, layout.tensor))


def _content(name: str, tensor: LazyTensor, model: ModelSection) -> dict[str, Any]:
    """Return what a weight's file holds, as `merge_tp_slices` in ds_to_universal.py writes it."""
    if tensor.dtype == torch.float64:
        msg = f"{name} has dtype fp64, but DeepSpeed's universal format has fp32.\nPass --dtype fp32 to round it."
        raise CheckpointError(msg)
    whole = cast(tensor, torch.float32, name)
    content: dict[str, Any] = {deepspeed_weights.PARAM: whole}
    dim = divided_dimension(name)
    if dim is not None:
        content[deepspeed_weights.CAT_DIM] = dim
    if is_gated(name, model):
        content[deepspeed_weights.SUB_PARAMS] = 2
    if ".linear_qkv." in name and _is_parts_first(model):
        content[deepspeed_weights.PARAM] = to_parts_first(whole, model.num_attention_heads)
        content[deepspeed_weights.SUB_PARAMS] = 3
    if name in {EMBEDDING, OUTPUT}:
        content[deepspeed_weights.VOCABULARY] = True
    return content


def _is_parts_first(model: ModelSection) -> bool:
    return model.num_query_groups == model.num_attention_heads


def _state(weights: ModelWeights, vocab_size: int, layout: FileLayout) -> dict[str, Any]:
    """Return a rank's state, as `_common_checkpoint_state` in deepspeed/runtime/engine.py, and Megatron's part."""
    iteration, samples = weights.iteration or 0, weights.consumed_samples or 0
    shapes: OrderedDict[str, torch.Size] = OrderedDict()
    for name, tensor in weights.tensors.items():
        shape, dim = list(tensor.shape), divided_dimension(name)
        if dim is not None:
            shape[dim] //= layout.tensor
        shapes[deepspeed_weights.their_name(name)] = torch.Size(shape)
    return {
        "module": {},
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [shapes],
        "shared_params": {},
        "lr_scheduler": dict(weights.schedule) or None,
        "skipped_steps": 0,
        "global_steps": iteration,
        "global_samples": samples,
        "dp_world_size": 1,
        "mp_world_size": layout.tensor,
        "ds_config": {},
        "ds_version": _VERSION,
        "args": argparse.Namespace(**_args(weights, layout)),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "tokens": samples * weights.model.seq_length,
        "universal_checkpoint_info": {
            "universal_checkpoint_version": _UNIVERSAL_VERSION,
            "original_vocab_size": vocab_size,
            "padded_vocab_size": weights.rows,
        },
    }


def _args(weights: ModelWeights, layout: FileLayout) -> dict[str, Any]:
    """Return the arguments that Megatron-DeepSpeed compares when it loads, and those that tell the model."""
    model = weights.model
    base = model.rotary_base
    same = (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "seq_length"),
        *("max_position_embeddings", "rotary_percent", "layernorm_epsilon", "add_bias_linear"),
        *("untie_embeddings_and_output_weights", "make_vocab_size_divisible_by"),
    )
    off = ("apply_layernorm_1p", "apply_residual_connection_post_layernorm", "squared_relu")
    parts_first = {"ds_sequence_parallel_fpdt": False} if _is_parts_first(model) else {}  # by which qkv_order knows it
    return {
        **parts_first,
        **{name: getattr(model, name) for name in same},
        **dict.fromkeys(off, False),
        "num_key_value_heads": model.num_query_groups,
        "add_position_embedding": model.position_embedding_type == "learned_absolute",
        "use_rotary_position_embeddings": model.position_embedding_type == "rope",
        "rope_theta": int(base) if base.is_integer() else base,
        "normalization": model.normalization.lower(),
        "swiglu": model.activation == "swiglu",
        "openai_gelu": model.activation == "gelu_tanh" and not model.add_bias_linear,
        "bias_gelu_fusion": model.activation == "gelu_tanh" and model.add_bias_linear,
        "num_experts": [1],
        "padded_vocab_size": weights.rows,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": 1,
        "consumed_train_samples": weights.consumed_samples or 0,
        "consumed_valid_samples": 0,
    }


def _saved(content: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()
