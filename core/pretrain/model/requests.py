"""Make the kernel requests of a recipe, which every backend answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import torch

from pretrain.plugins.requests import (
    ActivationRequest,
    AttentionRequest,
    BiasDropoutAddRequest,
    CollectivesRequest,
    CrossEntropyRequest,
    GroupedLinearRequest,
    LinearRequest,
    Mask,
    MoePermuteRequest,
    NormRequest,
    OptimizerRequest,
    RotaryRequest,
    RouterRequest,
)
from pretrain.recipe.layout import linear_shapes

if TYPE_CHECKING:
    from pretrain.plugins.requests import Request, SoftmaxRequest
    from pretrain.recipe import Recipe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""torch's dtype by its name in recipes."""


def compute_dtype(recipe: Recipe) -> torch.dtype:
    """Return the dtype of parameters and activations."""
    return DTYPES[recipe.precision.dtype]


def gradient_dtype(recipe: Recipe) -> torch.dtype:
    """Return the dtype in which gradients are accumulated and reduced."""
    return torch.float32 if recipe.precision.grad_reduce_in_fp32 else compute_dtype(recipe)


def attention_mask(recipe: Recipe) -> Mask:
    """Return the kind of attention mask: only `data.reset_attention_mask` separates documents."""
    return Mask.DOCUMENTS if recipe.data.reset_attention_mask else Mask.CAUSAL


def attention_requests(
    recipe: Recipe, device_type: str, device_name: str = "", *, layer_number: int = 1
) -> tuple[SoftmaxRequest | AttentionRequest, ...]:
    """Return the request of one layer's attention, and before it that of its softmax, where it has one size.

    Documents and pieces of sequences change the sizes from call to call: there plain torch computes it.

    Layers differ only under `model.apply_query_key_layer_scaling`: the scores of layer l (from 1) are stored divided
    by l, so that they fit into fp16, and multiplied by l again in fp32 inside the softmax.
    """
    model, tensor = recipe.model, recipe.parallel.tensor_model_parallel_size
    divisor = float(layer_number) if model.apply_query_key_layer_scaling else 1.0
    in_fp32 = model.attention_softmax_in_fp32 or model.apply_query_key_layer_scaling
    common = _common(recipe, device_type, device_name)
    is_all = model.window_size is None or model.window_size >= model.seq_length
    ranks = recipe.parallel.context_parallel_size
    attention = AttentionRequest(
        **common,
        heads=model.num_attention_heads // tensor,
        query_groups=model.num_query_groups // tensor,
        head_size=model.head_size,
        seq_length=model.seq_length // (2 * ranks) if ranks > 1 else model.seq_length,  # of one of a rank's two pieces
        keys=model.seq_length if ranks > 1 else 0,
        micro_batch_size=recipe.train.micro_batch_size,
        mask=attention_mask(recipe),
        dropout=model.attention_dropout,
        scale=model.head_size**-0.5,
        score_divisor=divisor,
        softmax_in_fp32=in_fp32,
        block_size=recipe.kernels.triangle_block_size,
        window=None if is_all else model.window_size,
    )
    has_one_size = attention.mask is not Mask.DOCUMENTS and not attention.keys
    return (attention.softmax(), attention) if has_one_size else (attention,)


def kernel_requests(recipe: Recipe, device_type: str, vocab_size: int, device_name: str = "") -> list[Request]:
    """Return one request per operation and role that the recipe needs, softmax before the attention that may use it."""
    model, parallel = recipe.model, recipe.parallel
    tensor = parallel.tensor_model_parallel_size
    common = _common(recipe, device_type, device_name)
    requests: list[Request] = [*attention_requests(recipe, device_type, device_name)]
    norm: dict[str, Any] = {
        "kind": model.normalization,
        "epsilon": model.layernorm_epsilon,
        "weight_dtype": compute_dtype(recipe),
    }
    requests.append(NormRequest(**common, **norm, hidden_size=model.hidden_size))
    if model.qk_layernorm:
        requests.append(NormRequest(**common, **norm, hidden_size=model.head_size, role="head"))
    if model.position_embedding_type == "rope":
        requests.append(
            RotaryRequest(
                **common,
                heads=model.num_attention_heads // tensor,
                head_size=model.head_size,
                rotary_size=model.rotary_size,
                seq_length=recipe.own_seq_length,
            )
        )
    requests += [
        ActivationRequest(
            **common, kind=model.activation, features=model.ffn_hidden_size // tensor, has_bias=model.add_bias_linear
        ),
        BiasDropoutAddRequest(
            **common, hidden_size=model.hidden_size, dropout=model.hidden_dropout, has_bias=model.add_bias_linear
        ),
        CrossEntropyRequest(
            **common,
            vocab_size=vocab_size,
            padded_vocab_size=model.padded_vocab_size(vocab_size, tensor),
            seq_length=recipe.own_seq_length,
            micro_batch_size=recipe.train.micro_batch_size,
            tensor_parallel_size=tensor,
            in_fp32=not recipe.precision.fp16_lm_cross_entropy,
        ),
        *(
            LinearRequest(
                **common,
                **({} if role else _of_body(recipe)),
                role=role,
                tensor_parallel_size=tensor,
                sequence_parallel=parallel.sequence_parallel,
                main_grad_dtype=gradient_dtype(recipe),
            )
            for role in _roles_of_linear(recipe)
        ),
        *expert_requests(recipe, device_type, device_name),
        _optimizer_request(recipe, common),
    ]
    return requests


def expert_requests(recipe: Recipe, device_type: str, device_name: str = "") -> list[Request]:
    """Return the requests of layers with experts; none for a model without."""
    model, parallel = recipe.model, recipe.parallel
    if model.num_experts is None:
        return []
    common = _common(recipe, device_type, device_name)
    in_fp32 = common | {"dtype": torch.float32}
    tensor, expert_tensor = parallel.tensor_model_parallel_size, parallel.expert_tensor_parallel_size
    tokens = recipe.own_seq_length * recipe.train.micro_batch_size
    features = model.moe_ffn_hidden_size // expert_tensor
    activation: dict[str, Any] = {"kind": model.activation, "has_bias": False}
    requests: list[Request] = [
        LinearRequest(**in_fp32, role="router"),
        RouterRequest(
            **in_fp32,
            experts=model.num_experts,
            topk=model.moe_router_topk,
            score_function=model.moe_router_score_function,
            pre_softmax=model.moe_router_pre_softmax,
            num_groups=model.moe_router_num_groups,
            group_topk=model.moe_router_group_topk,
            scaling_factor=model.moe_router_topk_scaling_factor,
            has_bias=model.moe_router_enable_expert_bias,
        ),
        MoePermuteRequest(
            **common, experts=model.num_experts, topk=model.moe_router_topk, hidden_size=model.hidden_size
        ),
        GroupedLinearRequest(
            **common,
            experts=model.num_experts // parallel.expert_model_parallel_size,
            hidden_size=model.hidden_size,
            ffn_hidden_size=features,
            is_gated=model.activation == "swiglu",
            # A tensor-parallel rank has its own tokens, and those of an expert go to all ranks that share it.
            rows=tokens // tensor * model.moe_router_topk * expert_tensor,
            main_grad_dtype=gradient_dtype(recipe),
            **_quantization(recipe),
        ),
        ActivationRequest(**common, **activation, features=features, role="expert"),
    ]
    if shared := model.moe_shared_expert_intermediate_size:
        requests.append(ActivationRequest(**common, **activation, features=shared // tensor, role="shared"))
    return requests


def _roles_of_linear(recipe: Recipe) -> list[str]:
    """Return the output layer's role where it has a kernel of its own: named by the recipe, or beside fp8."""
    is_apart = recipe.precision.fp8 or "linear@output" in recipe.kernels.chosen()
    return ["", "output"] if is_apart else [""]


def _of_body(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a quantized linear, which serves all but the output layer and the router."""
    quantization = _quantization(recipe)
    return quantization and {**quantization, "shapes": tuple((out, into) for into, out in linear_shapes(recipe))}


def _quantization(recipe: Recipe) -> dict[str, Any]:
    precision = recipe.precision
    return {"quantization": precision.fp8, "quantized_wgrad": precision.fp8_wgrad} if precision.fp8 else {}


def _optimizer_request(recipe: Recipe, common: dict[str, Any]) -> OptimizerRequest:
    match name := recipe.optimizer.own:
        case "adam" | "adamw":
            section = recipe.optimizer
            return OptimizerRequest(
                **common | {"dtype": torch.float32},
                name=name,
                exp_avg_dtype=DTYPES[section.exp_avg_dtype],
                exp_avg_sq_dtype=DTYPES[section.exp_avg_sq_dtype],
            )
        case "muon" | None:  # Muon's other weights are AdamW's, and an installed one may build on it
            return OptimizerRequest(**common | {"dtype": torch.float32}, name="adamw")
        case _:
            assert_never(name)


def _common(recipe: Recipe, device_type: str, device_name: str) -> dict[str, Any]:
    return {
        "device_type": device_type,
        "device_name": device_name,
        "dtype": compute_dtype(recipe),
        "deterministic": recipe.train.deterministic_mode,
    }


def collectives_request(recipe: Recipe, device_type: str, process_group: str) -> CollectivesRequest:
    """Return the request for process-group options; it is negotiated before the others."""
    return CollectivesRequest(
        device_type=device_type,
        dtype=gradient_dtype(recipe),
        deterministic=recipe.train.deterministic_mode,
        process_group=process_group,
        timeout_minutes=recipe.parallel.distributed_timeout_minutes,
    )
