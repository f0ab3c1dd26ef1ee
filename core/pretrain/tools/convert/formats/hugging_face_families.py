"""Names and orders of the weights of Hugging Face's models, and what models each of them can be.

They are defined by GPT2LMHeadModel (models/gpt2/modeling_gpt2.py of transformers), GPTNeoXForCausalLM
(models/gpt_neox/modeling_gpt_neox.py), LlamaForCausalLM (models/llama/modeling_llama.py), whose weights are also those
of Qwen2ForCausalLM and MistralForCausalLM, Qwen3ForCausalLM (models/qwen3/modeling_qwen3.py) and StableLmForCausalLM
(models/stablelm/modeling_stablelm.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe.section import as_text
from pretrain.tools.convert.lazy_tensor import joined, narrowed, transposed
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.rank_parts import from_parts_first, fused, separate, to_parts_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_LLAMA_QKV = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
# our module, without the layer -> GPT-2's, GPT-NeoX's and Llama's; several are parts of ours, in this order
_MODULES = {
    "embedding.word_embeddings": ("wte", "embed_in", "embed_tokens"),
    "embedding.position_embeddings": ("wpe", "", ""),
    "input_layernorm": ("ln_1", "input_layernorm", "input_layernorm"),
    "self_attention.linear_qkv": ("attn.c_attn", "attention.query_key_value", _LLAMA_QKV),
    "self_attention.q_layernorm": ("", "", "self_attn.q_norm"),
    "self_attention.k_layernorm": ("", "", "self_attn.k_norm"),
    "self_attention.linear_proj": ("attn.c_proj", "attention.dense", "self_attn.o_proj"),
    "pre_mlp_layernorm": ("ln_2", "post_attention_layernorm", "post_attention_layernorm"),
    "mlp.linear_fc1": ("mlp.c_fc", "mlp.dense_h_to_4h", "mlp.gate_proj mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.c_proj", "mlp.dense_4h_to_h", "mlp.down_proj"),
    "decoder.final_layernorm": ("ln_f", "final_layer_norm", "norm"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """An architecture of transformers."""

    architecture: str  # its class
    prefix: str  # of all weights but the output layer's; files of the model without an output layer lack it
    layers: str  # name of the list of layers, after the prefix
    modules: Mapping[str, str]  # our module -> theirs, a column of _MODULES
    output: str  # name of the output layer
    imported: Callable[[str, Sequence[LazyTensor], ModelSection], LazyTensor]  # of our name and their parts
    exported: Callable[[str, LazyTensor, ModelSection], Sequence[LazyTensor]]  # the reverse
    settings: Mapping[str, tuple[Any, ...]]  # by the name in a recipe: the values that are possible

    def names(self, ours: str) -> tuple[str, ...]:
        """Return their names of the parts of one of our weights."""
        module, _, kind = ours.rpartition(".")
        if module == "output_layer":
            return (f"{self.output}.{kind}",)
        begin = self.prefix
        if found := _LAYER.fullmatch(module):
            begin, module = f"{self.prefix}{self.layers}.{found[1]}.", found[2]
        return tuple(f"{begin}{name}.{kind}" for name in self.modules[module].split())

    def full_names(self, names: Collection[str]) -> list[str]:
        """Return the names that the weights of a file have in the whole model, in the same order."""
        # files of the model without an output layer lack the prefix; transformers 5 calls every output layer lm_head
        output = f"{self.output}.weight"
        outputs = {"lm_head.weight": output, output: output}
        prefix = "" if any(name.startswith(self.prefix) for name in names) else self.prefix
        return [outputs.get(name, f"{prefix}{name}") for name in names]

    def export(self, tensors: Mapping[str, LazyTensor], model: ModelSection) -> dict[str, LazyTensor]:
        """Return all of a model's weights under their names, from ours."""
        return {
            theirs: part
            for ours, whole in tensors.items()
            for theirs, part in zip(self.names(ours), self.exported(ours, whole, model), strict=True)
        }

    def misfits(self, model: ModelSection) -> list[str]:
        """Return the settings of a model that this architecture cannot have, as key=value."""
        wrong = [name for name, values in self.settings.items() if getattr(model, name) not in values]
        wrong += [name for name, is_needed in not_held("huggingface", model).items() if is_needed]
        if self.architecture in {"GPT2LMHeadModel", "GPTNeoXForCausalLM"}:
            wrong += ["num_query_groups"] if model.num_query_groups != model.num_attention_heads else []
        if self.architecture in {"GPT2LMHeadModel", "GPTNeoXForCausalLM", "StableLmForCausalLM"}:
            wrong += ["kv_channels"] if model.kv_channels * model.num_attention_heads != model.hidden_size else []
        elif model.hidden_size % model.num_attention_heads:  # LlamaConfig.validate_architecture
            wrong.append("num_attention_heads")
        return [f"model.{name}={as_text(getattr(model, name))}" for name in wrong]


def family_of(model: ModelSection) -> tuple[str, Architecture]:
    """Return the architecture that a model could be, and its model_type; `misfits` tells whether it is."""
    if model.position_embedding_type == "learned_absolute":
        kind = "gpt2"
    elif model.normalization == "LayerNorm":
        kind = "stablelm" if model.activation == "swiglu" else "gpt_neox"
    elif model.qk_layernorm:
        kind = "qwen3"
    elif model.add_qkv_bias and not model.add_bias_linear:
        kind = "qwen2"
    else:
        kind = "llama" if model.window_size is None else "mistral"
    return kind, FAMILIES[kind]


def _from_gpt2(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    """Conv1D of transformers multiplies from the left; queries of all heads come first, then keys, then values."""
    [part] = parts
    whole = transposed(part) if ".linear_" in name and len(part.shape) == 2 else part
    return from_parts_first(whole, model.num_attention_heads) if ".linear_qkv." in name else whole


def _to_gpt2(name: str, whole: LazyTensor, model: ModelSection) -> list[LazyTensor]:
    part = to_parts_first(whole, model.num_attention_heads) if ".linear_qkv." in name else whole
    return [transposed(part) if ".linear_" in name and len(part.shape) == 2 else part]


def _from_llama(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    if ".linear_qkv." in name:
        query, key, value = parts
        return fused(query, key, value, model)
    return joined(parts, 0)


def _to_llama(name: str, whole: LazyTensor, model: ModelSection) -> Sequence[LazyTensor]:
    if ".linear_qkv." in name:
        return separate(whole, model)
    if ".linear_fc1." in name:
        width = model.ffn_hidden_size
        return [narrowed(whole, 0, 0, width), narrowed(whole, 0, width, width)]
    return [whole]


_GPT2 = Architecture(
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    layers="h",
    modules={ours: theirs for ours, (theirs, _, _) in _MODULES.items()},
    output="lm_head",
    imported=_from_gpt2,
    exported=_to_gpt2,
    settings={
        "position_embedding_type": ("learned_absolute",),
        "normalization": ("LayerNorm",),
        "activation": ("gelu", "gelu_tanh"),
        "add_bias_linear": (True,),
        "qk_layernorm": (False,),
        "window_size": (None,),
        "parallel_residual": (False,),
    },
)
_GPT_NEOX = Architecture(
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    layers="layers",
    modules={ours: theirs for ours, (_, theirs, _) in _MODULES.items()},
    output="embed_out",
    imported=lambda _name, parts, _model: parts[0],
    exported=lambda _name, whole, _model: [whole],
    settings={
        "position_embedding_type": ("rope",),
        "normalization": ("LayerNorm",),
        "activation": ("gelu", "gelu_tanh"),
        "add_bias_linear": (True,),
        "qk_layernorm": (False,),
        "window_size": (None,),
    },
)
_LLAMA_SETTINGS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("rope",),
    "rotary_percent": (1.0,),
    "normalization": ("RMSNorm",),
    "activation": ("swiglu",),
    "qk_layernorm": (False,),
    "window_size": (None,),
    "parallel_residual": (False,),
}


def _like_llama(architecture: str, *, free: tuple[str, ...] = (), **settings: tuple[Any, ...]) -> Architecture:
    """Return an architecture with Llama's weights; `free` are Llama's settings that can have any value here."""
    return Architecture(
        architecture=architecture,
        prefix="model.",
        layers="layers",
        modules={ours: theirs for ours, (_, _, theirs) in _MODULES.items()},
        output="lm_head",
        imported=_from_llama,
        exported=_to_llama,
        settings={name: values for name, values in _LLAMA_SETTINGS.items() if name not in free} | settings,
    )


# by model_type
FAMILIES: dict[str, Architecture] = {
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "llama": _like_llama("LlamaForCausalLM"),
    "mistral": _like_llama(
        "MistralForCausalLM", free=("window_size",), add_bias_linear=(False,), add_qkv_bias=(False,)
    ),
    "qwen2": _like_llama("Qwen2ForCausalLM", add_bias_linear=(False,), add_qkv_bias=(True,)),
    "qwen3": _like_llama("Qwen3ForCausalLM", add_bias_linear=(False,), add_qkv_bias=(False,), qk_layernorm=(True,)),
    "stablelm": _like_llama(
        "StableLmForCausalLM", free=("rotary_percent",), normalization=("LayerNorm",), add_bias_linear=(False,)
    ),
}
