"""Write a file for each rank that Megatron-LM loads with --ckpt-format torch.

The names are megatron-core's with Transformer Engine's layers, version 3.0: the older names are those of
--use-legacy-models, which is gone since core 0.18, and --transformer-impl transformer_engine is the default. With
`local`, Megatron-LM would not load the norms, and only print so. load_checkpoint in megatron/training/checkpointing.py
compares the arguments with its own (check_checkpoint_args), and --use-checkpoint-args takes the model's settings from
them (load_args_from_checkpoint); --no-bias-gelu-fusion, for the exact gelu, and --norm-epsilon are not among them and
must be passed. There is no optimizer state: pass --no-load-optim --no-load-rng, or --finetune.

With --vocab-file, --tokenizer-type has to be the checkpoint's (check_checkpoint_args). That is GPT2BPETokenizer for
GPT-2's files and for learned positions, with which models of these files are trained; for others none is stored.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.folder import LATEST, folder_name
from pretrain.checkpoint.sharded_format import sharded_name
from pretrain.tools.convert.file_writers import TorchFile
from pretrain.tools.convert.formats.megatron import FILE
from pretrain.tools.convert.formats.megatron_settings import VOCAB_SIZE, require_none
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT
from pretrain.tools.convert.rank_parts import part_of_rank
from pretrain.tools.convert.summary import RELEASE
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import ModelWeights
    from pretrain.tools.convert.target import TargetLayout


_VERSION = 3.0
_ROPE_SCALING = {"rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What RotaryEmbedding of megatron-core has as constants."""

_FILES_OF_GPT2BPE = {"vocab.json", "merges.txt"}


def write(weights: ModelWeights, layout: TargetLayout) -> Target:
    """Return the files of a checkpoint of Megatron-LM.

    Args:
        weights: of the model.
        layout: its tensor-parallel and pipeline-parallel sizes.

    Raises:
        CheckpointError: Megatron-LM has no such model, or the layout does not fit it.
    """
    model = weights.model
    require_possible(model, layout)
    padded = weights.padded_for(layout.tensor)
    folder, latest = place_of(weights.iteration)
    args = args_for(padded, layout)
    files = []
    for stage in range(layout.pipeline):
        names = _of_stage(padded, stage, layout.pipeline)
        for rank in range(layout.tensor):
            place = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if layout.pipeline > 1 else "")
            content = _content(padded, args) | {"model": _of_rank(padded, names, rank, layout.tensor)}
            files.append(TorchFile(f"{folder}/{place}/{FILE}", content))
    return Target(files=files, small={LATEST: latest}, folder=folder)


def place_of(iteration: int | None) -> tuple[str, bytes]:
    """Return the folder of a checkpoint of an iteration, or without one, and the tracker's content that names it."""
    return (RELEASE, RELEASE.encode()) if iteration is None else (folder_name(iteration), str(iteration).encode())


def require_possible(model: ModelSection, layout: TargetLayout) -> None:
    """Require that Megatron-LM has such a model, and that the layout divides it.

    Raises:
        CheckpointError: it has not, or the layout does not.
    """
    scaling_differs = any(getattr(model, name) != value for name, value in _ROPE_SCALING.items())
    require_none(
        "Megatron-LM",
        {
            **not_held("megatron", model),
            "activation gelu_tanh without add_bias_linear": model.activation == "gelu_tanh"
            and not model.add_bias_linear,
            f"use_rope_scaling with other than {', '.join(f'{k} {v:g}' for k, v in _ROPE_SCALING.items())}": (
                model.use_rope_scaling and scaling_differs
            ),
        },
        {
            f"num_layers {model.num_layers} in {layout.pipeline} stages": model.num_layers % layout.pipeline,
            f"num_attention_heads {model.num_attention_heads} on {layout.tensor} ranks": (
                model.num_attention_heads % layout.tensor
            ),
            f"num_query_groups {model.num_query_groups} on {layout.tensor} ranks": (
                model.num_query_groups % layout.tensor
            ),
            f"ffn_hidden_size {model.ffn_hidden_size} on {layout.tensor} ranks": model.ffn_hidden_size % layout.tensor,
        },
    )


def _of_stage(weights: ModelWeights, stage: int, stages: int) -> dict[str, str]:
    """Return the name in the stage's file -> our name, of every weight of a stage."""
    size = weights.model.num_layers // stages
    names = {}
    for ours in weights.tensors:
        stored, layer = sharded_name(ours)
        if layer is not None and layer // size == stage:
            names[stored.replace("layers.", f"layers.{layer % size}.", 1)] = ours
        elif layer is None and stage == (0 if ours.startswith("embedding") else stages - 1):
            names[ours] = ours
    if stage == stages - 1 > 0 and OUTPUT not in weights.tensors:
        names[OUTPUT] = EMBEDDING  # the tied embedding's copy on the last stage
    return names


def _of_rank(weights: ModelWeights, names: dict[str, str], rank: int, ranks: int) -> dict[str, LazyTensor]:
    return {
        stored: part_of_rank(ours, weights.tensors[ours], rank, ranks, weights.model) for stored, ours in names.items()
    }


def _content(weights: ModelWeights, args: argparse.Namespace) -> dict[str, Any]:
    """Return what every rank's file has besides the weights."""
    content = {"args": args, "checkpoint_version": _VERSION, "iteration": weights.iteration or 0}
    return content | ({"opt_param_scheduler": dict(weights.schedule)} if weights.schedule else {})


def args_for(weights: ModelWeights, layout: TargetLayout) -> argparse.Namespace:
    """Return the arguments that Megatron-LM's load compares, and those that it takes the model from."""
    model = weights.model
    same = (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
        *("seq_length", "max_position_embeddings", "position_embedding_type", "normalization", "layernorm_epsilon"),
        *("rotary_percent", "use_rope_scaling", "rope_scaling_factor", "add_bias_linear", "add_qkv_bias"),
        *("untie_embeddings_and_output_weights", "make_vocab_size_divisible_by"),
    )
    files = {path.name for path in weights.tokenizer}
    is_gpt2 = files >= _FILES_OF_GPT2BPE or model.position_embedding_type == "learned_absolute"
    return argparse.Namespace(
        **{name: getattr(model, name) for name in same},
        group_query_attention=model.num_query_groups != model.num_attention_heads,
        add_position_embedding=True,
        use_rotary_position_embeddings=model.position_embedding_type == "rope",
        rotary_base=int(model.rotary_base) if model.rotary_base.is_integer() else model.rotary_base,
        rotary_interleaved=False,
        norm_epsilon=model.layernorm_epsilon,
        apply_layernorm_1p=False,
        swiglu=model.activation == "swiglu",
        squared_relu=False,
        openai_gelu=False,
        bias_gelu_fusion=model.activation == "gelu_tanh",
        num_experts=None,
        vocab_size=weights.vocab_size,
        **{VOCAB_SIZE: weights.vocab_size},
        padded_vocab_size=weights.rows,
        tokenizer_type="GPT2BPETokenizer" if is_gpt2 else None,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=None,
        ckpt_format="torch",
        data_parallel_random_init=False,
        consumed_train_samples=weights.consumed_samples or 0,
        skipped_train_samples=0,
        consumed_valid_samples=0,
        iteration=weights.iteration or 0,
    )
