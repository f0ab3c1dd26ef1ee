"""Write files that Megatron-LM loads: one for each rank (--ckpt-format torch), or sharded (torch_dist), as ours are.

The names of the first are megatron-core's with Transformer Engine's layers, version 3.0: the older names are those of
--use-legacy-models, which is gone since core 0.18, and --transformer-impl transformer_engine is the default. With
`local`, Megatron-LM would not load the norms, and only print so. load_checkpoint in megatron/training/checkpointing.py
compares the arguments with its own (check_checkpoint_args), and --use-checkpoint-args takes the model's settings from
them (load_args_from_checkpoint); --no-bias-gelu-fusion, for the exact gelu, --norm-epsilon and how rope is scaled are
not among them and must be passed. There is no optimizer state: pass --no-load-optim --no-load-rng, or --finetune.

With --vocab-file, --tokenizer-type has to be the checkpoint's (check_checkpoint_args). That is GPT2BPETokenizer for
GPT-2's files and for learned positions, with which models of these files are trained; for others none is stored.
"""

from __future__ import annotations

import argparse
import io
import json
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.folder import FORMAT, LATEST, folder_name, tracked
from pretrain.checkpoint.identity import structure
from pretrain.checkpoint.sharded_format import BACKEND, COMMON, is_stacked, sharded_name
from pretrain.errors import CheckpointError
from pretrain.tools.convert.file_writers import Entry, ShardedFile, TorchFile, write_index
from pretrain.tools.convert.formats.megatron import FILE
from pretrain.tools.convert.formats.megatron_rope import args_of_rope, is_yarn, missing_of_rope
from pretrain.tools.convert.formats.megatron_settings import (
    GROUPS,
    OF_ROUTER,
    VOCAB_SIZE,
    groups_agree,
    require_none,
    rests_on_ranks,
)
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT, RELEASE, dtype_name
from pretrain.tools.convert.rank_parts import part_of_rank
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.model_weights import FileLayout, ModelWeights

_VERSION = 3.0
_OFF = ("rotary_interleaved", "apply_layernorm_1p", "squared_relu", "openai_gelu", "data_parallel_random_init")
_FILES_OF_GPT2BPE = {"vocab.json", "merges.txt"}
# content of metadata.json (CheckpointingConfig of megatron-core)
_BACKENDS = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
BACKEND_JSON = json.dumps(_BACKENDS | {"common_backend": "torch", "common_backend_version": 1}).encode()


def write(weights: ModelWeights, layout: FileLayout) -> Target:
    """Return the files of a checkpoint of Megatron-LM."""
    model = weights.model
    if model.num_experts is not None:
        msg = f"{weights.path} has experts (model.num_experts), which are not written into files of one rank each.\n"
        msg += "Convert it to torch_dist, which Megatron-LM reads too."
        raise CheckpointError(msg)
    if model.activation == "gelu_tanh" and not model.add_bias_linear:  # which Megatron-LM has with biases alone
        weights = weights.with_zero_biases()
        model = weights.model
    _require_possible(model, layout)
    padded = weights.padded_for(layout.tensor)
    folder, latest = _place_of(weights.iteration)
    state = _state_of(padded, layout)
    files = []
    for stage in range(layout.pipeline):
        names = _of_stage(padded, stage, layout.pipeline)
        for rank in range(layout.tensor):
            place = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if layout.pipeline > 1 else "")
            parts = {
                stored: part_of_rank(ours, padded.tensors[ours], rank, layout.tensor, model)
                for stored, ours in names.items()
            }
            files.append(TorchFile(f"{folder}/{place}/{FILE}", state | {"model": parts}))
    return Target(files=files, small={LATEST: latest}, folder=folder)


def _place_of(iteration: int | None) -> tuple[str, bytes]:
    """Return the folder of a checkpoint, with or without an iteration, and the content of the tracker that names it."""
    return (RELEASE, RELEASE.encode()) if iteration is None else (folder_name(iteration), str(iteration).encode())


def _require_possible(model: ModelSection, layout: FileLayout) -> None:
    stages = {f"num_layers {model.num_layers} in {layout.pipeline} stages": model.num_layers % layout.pipeline}
    require_none(
        "Megatron-LM",
        {
            **not_held("megatron", model),
            **missing_of_rope(model),
            GROUPS: not groups_agree(model),
        },
        stages | rests_on_ranks(model, layout.tensor),
    )


def _of_stage(weights: ModelWeights, stage: int, stages: int) -> dict[str, str]:
    """Return the name in the stage's file -> our name, of every weight of a stage."""
    size = weights.model.num_layers // stages
    names = {}
    for ours in weights.tensors:
        stored, layer = sharded_name(ours, weights.model.layers_with_experts)
        if layer is not None and layer // size == stage:
            names[stored.replace("layers.", f"layers.{layer % size}.", 1)] = ours
        elif layer is None and stage == (0 if ours.startswith("embedding") else stages - 1):
            names[ours] = ours
    if stage == stages - 1 > 0 and OUTPUT not in weights.tensors:
        names[OUTPUT] = EMBEDDING  # the tied embedding's copy on the last stage
    return names


def _state_of(weights: ModelWeights, layout: FileLayout) -> dict[str, Any]:
    """Return what every rank's file has besides the weights."""
    state = {"args": args_for(weights, layout), "checkpoint_version": _VERSION, "iteration": weights.iteration or 0}
    return state | ({"opt_param_scheduler": dict(weights.schedule)} if weights.schedule else {})


def args_for(weights: ModelWeights, layout: FileLayout) -> argparse.Namespace:
    """Return the arguments that Megatron-LM's load compares, and those that it takes the model from."""
    model = weights.model
    same = (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
        *("seq_length", "max_position_embeddings", "normalization", "layernorm_epsilon", "rotary_percent"),
        *("add_bias_linear", "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights"),
        "make_vocab_size_divisible_by",
    )
    files = {path.name for path in weights.tokenizer}
    is_gpt2 = files >= _FILES_OF_GPT2BPE or model.position_embedding_type == "learned_absolute"
    return argparse.Namespace(
        **{name: getattr(model, name) for name in same},
        group_query_attention=model.num_query_groups != model.num_attention_heads,
        add_position_embedding=True,
        **dict.fromkeys(_OFF, False),
        position_embedding_type="yarn" if is_yarn(model) else model.position_embedding_type,
        use_rotary_position_embeddings=model.position_embedding_type == "rope" and not is_yarn(model),
        **args_of_rope(model),
        rotary_base=int(model.rotary_base) if model.rotary_base.is_integer() else model.rotary_base,
        norm_epsilon=model.layernorm_epsilon,
        swiglu=model.activation == "swiglu",
        bias_gelu_fusion=model.activation == "gelu_tanh",
        window_size=None if model.window_size is None else (model.window_size - 1, 0),
        **_of_experts(model),
        vocab_size=weights.vocab_size,
        **{VOCAB_SIZE: weights.vocab_size},
        padded_vocab_size=weights.rows,
        tokenizer_type="GPT2BPETokenizer" if is_gpt2 else None,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=None,
        ckpt_format="torch",
        consumed_train_samples=weights.consumed_samples or 0,
        skipped_train_samples=0,
        consumed_valid_samples=0,
        iteration=weights.iteration or 0,
    )


def _of_experts(model: ModelSection) -> dict[str, Any]:
    if model.num_experts is None:
        return {"num_experts": None}
    same = ("num_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", *OF_ROUTER)
    has_experts = model.layers_with_experts
    return {name: getattr(model, name) for name in same} | {
        "moe_layer_freq": 1 if all(has_experts) else list(map(int, has_experts)),
        "moe_router_load_balancing_type": model.moe_router_load_balancing_type,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
    }


def write_pretrain(weights: ModelWeights, layout: FileLayout) -> Target:  # noqa: ARG001  the format has no layout
    """Return the files of a folder of checkpoints of this program that has one, with weights alone."""
    weights = weights.padded_for(1, with_zeros=True)
    iteration = weights.iteration or 0
    name = folder_name(iteration)
    progress = {"iteration": iteration, "consumed_samples": weights.consumed_samples or 0, "skipped_iterations": 0}
    common = {
        "format": FORMAT,
        "progress": progress | {"blend": None, "order": None, "tokenizer": weights.fingerprint},
        "model": structure(weights.model) | {"vocab_size": weights.vocab_size, "vocabulary_rows": weights.rows},
        "dtype": dtype_name(weights.tensors[EMBEDDING].dtype),
        "settings": {},
        "samples": {},
    }
    if weights.schedule:
        common["schedule"] = dict(weights.schedule)
    return _target(weights, name, common, tracked(str(iteration)).encode())


def write_torch_dist(weights: ModelWeights, layout: FileLayout) -> Target:
    """Return the files of a folder of checkpoints of Megatron-LM that has one, with weights alone."""
    _require_possible(weights.model, layout)
    weights = weights.padded_for(layout.tensor)
    name, latest = _place_of(weights.iteration)
    return _target(weights, name, _state_of(weights, layout) | {"content_metadata": {}}, latest)


def _target(weights: ModelWeights, folder: str, common: dict[str, Any], latest: bytes) -> Target:
    files = _files(weights, folder)
    buffer = io.BytesIO()
    torch.save(common, buffer)

    def finish(target: Path, written: Mapping[str, Any]) -> None:
        entries = [entry for file in files for entry in file.entries]
        write_index(target / folder, entries, {file.name.rpartition("/")[2]: written[file.name] for file in files})

    small = {f"{folder}/{COMMON}": buffer.getvalue(), f"{folder}/{BACKEND}": BACKEND_JSON, LATEST: latest}
    return Target(files=files, small=small, folder=folder, finish=finish)


def _files(weights: ModelWeights, folder: str) -> list[ShardedFile]:
    """Return a file for each layer, and one for each of the other weights."""
    layers: dict[int | None, list[Entry]] = {}
    has_experts = weights.model.layers_with_experts
    for name, tensor in weights.tensors.items():
        key, layer = sharded_name(name, has_experts)
        place = layer if is_stacked(has_experts) else None
        layers.setdefault(layer, []).append(Entry(key, place, weights.model.num_layers, tensor))
    files: list[ShardedFile] = []
    for layer, entries in layers.items():
        groups = [entries] if layer is not None else [[entry] for entry in entries]
        for group in groups:
            states = () if layer is None else _extra_states(weights.model, layer)
            files.append(ShardedFile(f"{folder}/__0_{len(files)}.distcp", tuple(group), states))
    return files


def _extra_states(model: ModelSection, layer: int) -> tuple[str, ...]:
    """Return the keys of a layer's states of Transformer Engine's linear layers (scales of FP8).

    megatron-core appends the place in the layers, and of an expert's state in the experts (ShardedObject.unique_key).
    """
    has_experts = model.layers_with_experts
    begin, places = (
        ("decoder.layers.", [(layer, model.num_layers)])
        if is_stacked(has_experts)
        else (f"decoder.layers.{layer}.", [])
    )
    of_mlp = {"mlp": [places]}
    if has_experts[layer]:
        experts = model.num_experts or 0
        of_mlp = {"mlp.experts.experts": [[*places, (number, experts)] for number in range(experts)]}
        of_mlp |= {"mlp.shared_experts": [places]} if model.moe_shared_expert_intermediate_size else {}
    linears = {f"self_attention.{name}": [places] for name in ("linear_qkv", "linear_proj")}
    linears |= {f"{mlp}.{name}": shards for mlp, shards in of_mlp.items() for name in ("linear_fc1", "linear_fc2")}
    return tuple(
        f"{begin}{linear}._extra_state/{_shard(shard)}" for linear, shards in linears.items() for shard in shards
    )


def _shard(places: list[tuple[int, int]]) -> str:
    offsets, sizes = zip(*(places or [(0, 1)]), strict=True)
    return f"shard_{'.'.join(map(str, offsets))}_{'.'.join(map(str, sizes))}"
