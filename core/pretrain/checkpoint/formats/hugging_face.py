"""Hugging Face's format: config.json, and the weights in safetensors or torch files, whole or in shards."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pretrain.checkpoint.formats import torch_file
from pretrain.checkpoint.formats.dtypes import dtype_name
from pretrain.checkpoint.formats.location import extent
from pretrain.checkpoint.formats.megatron_weights import flat_weights
from pretrain.checkpoint.formats.summary import Summary
from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "config.json"
_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights where they are one file; shards are listed in NAME.index.json."""

_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attention|attn)\.(bias|masked_bias))$")
"""Masks and frequencies that old files of GPT-2 and GPT-NeoX hold among the weights."""

_COMMON = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "layernorm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"),
    "rotary_base": ("rope_theta", "rotary_emb_base"),
    "rotary_percent": ("partial_rotary_factor", "rotary_pct"),
    "parallel_residual": ("use_parallel_residual",),
    "padded_vocab_size": ("vocab_size",),
}
"""Setting of a recipe -> its names in config.json, the first that is there."""

_ACTIVATIONS = {"gelu": "gelu", "silu": "swiglu"} | dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"
)
_MODELS = {
    "gpt2": {"position_embedding_type": "learned_absolute", "normalization": "LayerNorm"},
    "gpt_neox": {"position_embedding_type": "rope", "normalization": "LayerNorm"},
    **{key: {"position_embedding_type": "rope", "normalization": "RMSNorm"} for key in ("llama", "mistral", "qwen2")},
}


def describe(folder: Path) -> Summary | None:
    """Describe the model in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a shard is missing, or a file holds objects that could run code.
        DamageError: a file is cut off, or no JSON.
    """
    if not (folder / CONFIG).is_file():
        return None
    found = next(
        (name for name in _NAMES if (folder / name).is_file() or (folder / f"{name}.index.json").is_file()), None
    )
    if found is None:
        return None
    config = _json(folder / CONFIG)
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in _files(folder, found):
        tensors |= {name: seen for name, seen in _tensors(file).items() if _BUFFERS.search(name) is None}
    files, size = extent(folder)
    version = config.get("transformers_version")
    return Summary(
        path=folder,
        format=f"Hugging Face, {'safetensors' if found == _NAMES[0] else 'torch files'}",
        version=None if version is None else f"transformers {version}",
        model=_model(config),
        parameters=sum(math.prod(shape) for shape, _ in tensors.values()),
        dtypes=tuple(sorted({dtype for _, dtype in tensors.values()})),
        contents=("weights",),
        files=files,
        size=size,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is damaged, or no JSON: {str(error)[:200]}"
        raise DamageError(msg) from error
    if not isinstance(value, dict):
        msg = f"{path} is no JSON object."
        raise DamageError(msg)
    return value


def _files(folder: Path, name: str) -> list[Path]:
    """Return the files of the weights.

    Raises:
        CheckpointError: the index of shards names one that is not in the folder.
    """
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        msg = f"{index} is damaged: it has no `weight_map` from weights to files."
        raise DamageError(msg)
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if "/" in shard or "\\" in shard or not (folder / shard).is_file()]:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        msg = (
            f"{index} names {len(missing)} of {len(names)} files that are not in its folder: {shown}.\nCopy them there."
        )
        raise CheckpointError(msg)
    return [folder / shard for shard in names]


def _tensors(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    if file.suffix != ".safetensors":
        state = torch_file.read(file)
        if not isinstance(state, dict):
            msg = f"{file} holds no weights by name."
            raise DamageError(msg)
        once = {(tensor.data_ptr(), tensor.shape): name for name, tensor in flat_weights(state).items()}
        return {name: (tuple(state[name].shape), dtype_name(state[name].dtype)) for name in once.values()}
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
            return {name: (tuple(part.get_shape()), _dtype(part.get_dtype())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        msg = f"{file} is damaged, or no safetensors file: {str(error)[:200]}"
        raise DamageError(msg) from error


def _dtype(name: str) -> str:
    """Return a recipe's name of a dtype that safetensors calls F16 or BF16."""
    return name.lower() if name.startswith("B") else name.lower().replace("f", "fp", 1)


def _model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe's section `model` that config.json tells."""
    rope = config.get("rope_parameters")
    config = (rope if isinstance(rope, dict) else {}) | config  # where transformers 5 keeps rope_theta
    model = {
        ours: value
        for ours, names in _COMMON.items()
        if (value := next((config[name] for name in names if config.get(name) is not None), None)) is not None
    }
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _MODELS:
        return model
    model |= _MODELS[kind]
    if kind == "gpt2" and isinstance(model.get("hidden_size"), int):
        model.setdefault("ffn_hidden_size", 4 * model["hidden_size"])  # GPT2Config: n_inner None
    activation = config.get("hidden_act", config.get("activation_function"))
    if isinstance(activation, str) and activation in _ACTIVATIONS:
        model["activation"] = _ACTIVATIONS[activation]
    tied = config.get("tie_word_embeddings", kind == "gpt2")  # GPTNeoXConfig's and LlamaConfig's default is False
    return model | {"untie_embeddings_and_output_weights": not tied}
