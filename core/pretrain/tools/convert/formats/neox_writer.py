"""Write files that GPT-NeoX loads, with the names that it has since September 2024.

DeepSpeed reads a layer's file by the module's number in GPT2ModelPipe.init_specs (megatron/model/gpt2_model.py): 0 is
the embedding, 2 the first layer; with l layers l + 3 is the final norm, l + 4 the output layer. mp_rank_XX holds what
is no layer's, one for each tensor- and pipeline-parallel rank. GPT-NeoX compares `args` with its own
(check_checkpoint_args in megatron/checkpointing.py). There is no optimizer state: set `finetune: true`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pretrain.tools.convert.file_writers import TorchFile
from pretrain.tools.convert.formats.megatron_settings import require_none, rests_on_ranks
from pretrain.tools.convert.formats.neox import config_of
from pretrain.tools.convert.formats.neox_layers import ROW_BIASES
from pretrain.tools.convert.lazy_tensor import constant
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.model_weights import LATEST_OF_DEEPSPEED
from pretrain.tools.convert.rank_parts import gate_last, is_gated, part_of_rank, to_rank
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import FileLayout, ModelWeights

# our module outside the layers -> its number, plus the number of layers unless it is 0, and GPT-NeoX's name
_OUTSIDE = {
    "embedding.word_embeddings.": (0, "word_embeddings."),
    "embedding.position_embeddings.": (0, "position_embeddings."),
    "decoder.final_layernorm.": (3, "norm."),
    "output_layer.": (4, "final_linear."),
}
_IN_LAYER = {
    "input_layernorm": "input_layernorm",
    "self_attention.linear_qkv": "attention.query_key_value",
    "self_attention.linear_proj": "attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.linear1",
    "mlp.linear_fc2": "mlp.linear2",
}
_FIRST_LAYER = 2


def write(weights: ModelWeights, layout: FileLayout) -> Target:
    """Return the files of a checkpoint of GPT-NeoX."""
    # ParallelMLP.forward adds a bias there without asking for it, and ParallelTransformerLayer.forward leaves the
    # attention out.
    if weights.model.activation != "swiglu" and not weights.model.add_bias_linear:
        weights = weights.with_zero_biases()
    model = weights.model
    _require_possible(model, layout.tensor)
    padded = weights.padded_for(layout.tensor)
    tag = f"global_step{weights.iteration or 0}"
    modules: dict[int, dict[str, str]] = {}
    for ours in padded.tensors:
        number, stored = _stored(ours, model)
        modules.setdefault(number, {})[stored] = ours
    files = [
        TorchFile(
            f"{tag}/layer_{number:02d}-model_{rank:02d}-model_states.pt",
            {stored: _of_rank(padded, ours, rank, layout.tensor) for stored, ours in sorted(names.items())},
        )
        for number, names in sorted(modules.items())
        for rank in range(layout.tensor)
    ]
    states = _states(padded, layout.tensor)
    ranks = range(layout.tensor * layout.pipeline)
    config = config_of(model) | {"model_parallel_size": layout.tensor, "pipe_parallel_size": layout.pipeline}
    return Target(
        files=[*files, *(TorchFile(f"{tag}/mp_rank_{rank:02d}_model_states.pt", states) for rank in ranks)],
        small={LATEST_OF_DEEPSPEED: tag.encode(), f"{tag}/configs/model.yml": yaml.safe_dump(config).encode()},
        folder=tag,
    )


def _require_possible(model: ModelSection, ranks: int) -> None:
    is_gelu = model.activation != "swiglu"
    require_none(
        "GPT-NeoX",
        {
            **not_held("neox", model),
            "kv_channels other than hidden_size / num_attention_heads": (
                model.kv_channels * model.num_attention_heads != model.hidden_size
            ),
            # ParallelTransformerLayer.forward leaves the attention out
            "parallel_residual without add_bias_linear": model.parallel_residual and not model.add_bias_linear,
            "odd ffn_hidden_size": is_gelu and model.ffn_hidden_size % 2,
        },
        rests_on_ranks(model, ranks),
    )


def _stored(ours: str, model: ModelSection) -> tuple[int, str]:
    """Return the number of the module that a weight is in, and its name there."""
    is_rms_norm = model.normalization == "RMSNorm" and "layernorm." in ours
    ours = ours.removesuffix("weight") + "scale" if is_rms_norm else ours
    for module, (number, stored) in _OUTSIDE.items():
        if ours.startswith(module):
            return number + (model.num_layers if number else 0), stored + ours.removeprefix(module)
    layer, name = ours.removeprefix("decoder.layers.").split(".", 1)
    module, _, kind = name.rpartition(".")
    return int(layer) + _FIRST_LAYER, f"{_IN_LAYER[module]}.{kind}"


def _of_rank(weights: ModelWeights, name: str, rank: int, ranks: int) -> LazyTensor:
    model, whole = weights.model, weights.tensors[name]
    if ".linear_qkv." in name and model.num_query_groups != model.num_attention_heads:
        return to_rank(whole, rank, ranks, model)
    if model.parallel_residual and rank and name.endswith(ROW_BIASES):
        return constant(whole.shape, whole.dtype, 0.0)  # the ranks' biases are summed, and this sum is exact
    part = part_of_rank(name, whole, rank, ranks, model)
    return gate_last(part) if is_gated(name, model) else part


def _states(weights: ModelWeights, ranks: int) -> dict[str, Any]:
    """Return the rest: DeepSpeed's counters (_load_checkpoint in runtime/engine.py), and GPT-NeoX's args."""
    model = weights.model
    same = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
    args = {name: getattr(model, name) for name in (*same, "make_vocab_size_divisible_by")}
    iteration = weights.iteration or 0
    return {
        "module": None,  # of a pipeline: the layers have files of their own
        "optimizer": None,
        "lr_scheduler": None,
        "global_steps": iteration,
        "global_samples": weights.consumed_samples or 0,
        "skipped_steps": 0,
        "dp_world_size": 1,
        "mp_world_size": ranks,
        "iteration": iteration,
        "args": args | {"padded_vocab_size": weights.rows, "model_parallel_size": ranks},
    }
