"""Names and orders of the weights of Hugging Face's models, and what models each of them can be.

They are defined by GPT2LMHeadModel (models/gpt2/modeling_gpt2.py of transformers), GPTNeoXForCausalLM
(models/gpt_neox/modeling_gpt_neox.py), LlamaForCausalLM (models/llama/modeling_llama.py), whose weights are also those
of Qwen2ForCausalLM and MistralForCausalLM, Qwen3ForCausalLM (models/qwen3/modeling_qwen3.py) and StableLmForCausalLM
(models/stablelm/modeling_stablelm.py); with experts by MixtralForCausalLM, Qwen3MoeForCausalLM, Glm4MoeForCausalLM and
Dots1ForCausalLM, whose files have a weight for each expert and matrix (conversion_mapping.py of transformers 5, which
holds those of a layer in one tensor).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe.section import as_text
from pretrain.tools.convert.lazy_tensor import joined, narrowed, row_of, stacked, transposed
from pretrain.tools.convert.model_keys import not_held
from pretrain.tools.convert.rank_parts import from_parts_first, fused, separate, to_parts_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = "*"  # in the name of a weight that each expert has: its number
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
_EXPERTS = {
    "mlp.router": "mlp.gate",
    "mlp.experts.linear_fc1": "mlp.experts.*.gate_proj mlp.experts.*.up_proj",
    "mlp.experts.linear_fc2": "mlp.experts.*.down_proj",
    "mlp.shared_experts.linear_fc1": "mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
    "mlp.shared_experts.linear_fc2": "mlp.shared_experts.down_proj",
}
_EXPERTS_OF_MIXTRAL = {
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.linear_fc1": "block_sparse_moe.experts.*.w1 block_sparse_moe.experts.*.w3",
    "mlp.experts.linear_fc2": "block_sparse_moe.experts.*.w2",
}
_TOGETHER = re.compile(r"model\.layers\.(\d+)\.mlp\.(gate\.weight|experts\.gate_up_proj|experts\.down_proj)")
_OF_TOGETHER = {
    "gate.weight": "mlp.router",
    "experts.gate_up_proj": "mlp.experts.linear_fc1",
    "experts.down_proj": "mlp.experts.linear_fc2",
}
_BIAS_OF_EXPERTS, _THEIR_BIAS = "expert_bias", "e_score_correction_bias"


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
    always_has_biases: bool = False  # linear layers: those of a model without them are written as 0

    def names(self, ours: str, experts: int = 0) -> tuple[str, ...]:
        """Return their names of the parts of one of our weights; with so many experts those of one after another."""
        module, _, kind = ours.rpartition(".")
        kind = _THEIR_BIAS if kind == _BIAS_OF_EXPERTS else kind
        if module == "output_layer":
            return (f"{self.output}.{kind}",)
        begin = self.prefix
        if found := _LAYER.fullmatch(module):
            begin, module = f"{self.prefix}{self.layers}.{found[1]}.", found[2]
        parts = [f"{begin}{name}.{kind}" for name in self.modules[module].split()]
        if _EXPERT not in parts[0]:
            return tuple(parts)
        return tuple(part.replace(_EXPERT, str(number)) for number in range(experts) for part in parts)

    def full_names(self, names: Collection[str]) -> list[str]:
        """Return the names that the weights of a file have in the whole model, in the same order."""
        # files of the model without an output layer lack the prefix; transformers 5 calls every output layer lm_head
        output = f"{self.output}.weight"
        outputs = {"lm_head.weight": output, output: output}
        prefix = "" if any(name.startswith(self.prefix) for name in names) else self.prefix
        return [outputs.get(name, f"{prefix}{name}") for name in names]

    def one_by_one(self, stored: Mapping[str, LazyTensor], model: ModelSection) -> dict[str, LazyTensor]:
        """Return a file's weights with one for each expert, where it has those of a layer in one tensor.

        transformers 5 has so in memory, and in files of save_pretrained with save_original_format=False.
        """
        found: dict[str, LazyTensor] = {}
        for name, tensor in stored.items():
            place = _TOGETHER.fullmatch(name)
            module = _OF_TOGETHER[place[2]] if place else ""
            if place is None or module not in self.modules or tensor.shape[0] != model.num_experts:
                found[name] = tensor
                continue
            ours = f"decoder.layers.{place[1]}.{module}.weight"
            found |= zip(self.names(ours, model.num_experts), self.exported(ours, tensor, model), strict=True)
        return found

    def export(self, tensors: Mapping[str, LazyTensor], model: ModelSection) -> dict[str, LazyTensor]:
        """Return all of a model's weights under their names, from ours."""
        return {
            theirs: part
            for ours, whole in tensors.items()
            for theirs, part in zip(
                self.names(ours, model.num_experts or 0), self.exported(ours, whole, model), strict=True
            )
        }

    def _misfits_of_experts(self, model: ModelSection) -> list[str]:
        """Return the settings of experts whose possible values depend on other settings."""
        shared, each = model.moe_shared_expert_intermediate_size, model.moe_ffn_hidden_size
        has_one_width = self.architecture == "MixtralForCausalLM"
        needs_shared = self.architecture in {"Glm4MoeForCausalLM", "Dots1ForCausalLM"}
        wrong = {
            "num_experts": model.num_experts is None,
            "moe_ffn_hidden_size": has_one_width and each != model.ffn_hidden_size,
            "moe_shared_expert_intermediate_size": needs_shared and (not shared or shared % each != 0),
        }
        return [name for name, is_wrong in wrong.items() if is_wrong]

    def misfits(self, model: ModelSection) -> list[str]:
        """Return the settings of a model that this architecture cannot have, as key=value."""
        wrong = [name for name, values in self.settings.items() if getattr(model, name) not in values]
        wrong += [name for name, is_needed in not_held("huggingface", model).items() if is_needed]
        if self.architecture in {"GPT2LMHeadModel", "GPTNeoXForCausalLM"}:
            wrong += ["num_query_groups"] if model.num_query_groups != model.num_attention_heads else []
        if self.architecture in {"GPT2LMHeadModel", "GPTNeoXForCausalLM", "StableLmForCausalLM"}:
            wrong += ["kv_channels"] if model.kv_channels * model.num_attention_heads != model.hidden_size else []
        elif self.modules.keys().isdisjoint(_EXPERTS):
            wrong += ["num_attention_heads"] if model.hidden_size % model.num_attention_heads else []
        else:
            wrong += self._misfits_of_experts(model)
        return [f"model.{name}={as_text(getattr(model, name))}" for name in wrong]


def family_of(model: ModelSection) -> tuple[str, Architecture]:
    """Return the architecture that a model could be, and its model_type; `misfits` tells whether it is."""
    if model.position_embedding_type == "learned_absolute":
        kind = "gpt2"
    elif model.normalization == "LayerNorm":
        kind = "stablelm" if model.activation == "swiglu" else "gpt_neox"
    elif model.num_experts is not None:
        kind = "qwen3_moe" if model.qk_layernorm else "mixtral"
        if model.moe_router_score_function == "sigmoid":
            is_dots = model.qk_layernorm and model.rotary_percent == 1.0 and not model.add_qkv_bias
            kind = "dots1" if is_dots else "glm4_moe"
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


_OF_EXPERTS = ".mlp.experts."


def _from_llama(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    if ".linear_qkv." in name:
        query, key, value = parts
        return fused(query, key, value, model)
    if _OF_EXPERTS in name:
        count = len(parts) // (model.num_experts or 1)
        return stacked([joined(parts[first : first + count], 0) for first in range(0, len(parts), count)])
    return joined(parts, 0)


def _to_llama(name: str, whole: LazyTensor, model: ModelSection) -> Sequence[LazyTensor]:
    if ".linear_qkv." in name:
        return separate(whole, model)
    if _OF_EXPERTS in name:
        each = [row_of(whole, number) for number in range(whole.shape[0])]
        return [part for expert in each for part in _to_llama(name.replace(_OF_EXPERTS, ".mlp."), expert, model)]
    if ".linear_fc1." in name:
        width = whole.shape[0] // 2
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
    always_has_biases=True,
    settings={
        "position_embedding_type": ("learned_absolute",),
        "normalization": ("LayerNorm",),
        "activation": ("gelu", "gelu_tanh"),
        "qk_layernorm": (False,),
        "window_size": (None,),
        "parallel_residual": (False,),
        "num_experts": (None,),
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
    always_has_biases=True,
    settings={
        "position_embedding_type": ("rope",),
        "normalization": ("LayerNorm",),
        "activation": ("gelu", "gelu_tanh"),
        "qk_layernorm": (False,),
        "window_size": (None,),
        "num_experts": (None,),
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
    "num_experts": (None,),
}


def _like_llama(
    architecture: str,
    experts: Mapping[str, str] | None = None,
    *,
    free: tuple[str, ...] = (),
    **settings: tuple[Any, ...],
) -> Architecture:
    """Return an architecture with Llama's layers, and experts under other names.

    `free` are those of Llama's settings that can have any value.
    """
    return Architecture(
        architecture=architecture,
        prefix="model.",
        layers="layers",
        modules={ours: theirs for ours, (_, _, theirs) in _MODULES.items()} | dict(experts or {}),
        output="lm_head",
        imported=_from_llama,
        exported=_to_llama,
        settings={name: values for name, values in _LLAMA_SETTINGS.items() if name not in free} | settings,
    )


_OF_SOFTMAX: dict[str, tuple[Any, ...]] = {
    "add_bias_linear": (False,),
    "add_qkv_bias": (False,),
    "first_k_dense_replace": (0,),
    "moe_shared_expert_intermediate_size": (None,),
    "moe_router_score_function": ("softmax",),
    "moe_router_num_groups": (None,),
    "moe_router_topk_scaling_factor": (1.0,),
    "moe_router_enable_expert_bias": (False,),
}
_OF_SIGMOID: dict[str, tuple[Any, ...]] = {
    "moe_router_score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
}


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
    "mixtral": _like_llama(
        "MixtralForCausalLM",
        _EXPERTS_OF_MIXTRAL,
        free=("num_experts", "window_size"),
        moe_router_pre_softmax=(False,),
        **_OF_SOFTMAX,
    ),
    "qwen3_moe": _like_llama(
        "Qwen3MoeForCausalLM", _EXPERTS, free=("num_experts",), qk_layernorm=(True,), **_OF_SOFTMAX
    ),
    "glm4_moe": _like_llama(
        "Glm4MoeForCausalLM",
        _EXPERTS,
        free=("num_experts", "rotary_percent", "qk_layernorm"),
        add_bias_linear=(False,),
        **_OF_SIGMOID,
    ),
    "dots1": _like_llama(
        "Dots1ForCausalLM",
        _EXPERTS,
        free=("num_experts",),
        add_bias_linear=(False,),
        add_qkv_bias=(False,),
        qk_layernorm=(True,),
        **_OF_SIGMOID,
    ),
}
