"""Flags of dtypes and of the loss scale.

validate_args; get_megatron_optimizer; TransformerConfig in megatron/core/transformer/transformer_config.py for the
formats of 8 and 4 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_DTYPE = "fp16 or bf16, else fp32"
_SCALE = "only of fp16, and only without a fixed loss_scale"
_SUMS = "of fp16 as the flags say; bf16 is summed in fp32 unless grad_reduce_in_bf16 is given"
_EIGHT_BITS = "matrix products are computed in precision.dtype, not in 8 or 4 bits: slower, with more memory"
_STATE = "main weights, their gradients and the moments of Adam are fp32: they take more memory"
_OF_EIGHT_BITS = "it belongs to fp8 or fp4"

PRECISION: dict[str, Meaning] = {
    "fp16": Carried("precision.dtype", {True: "fp16"}, _DTYPE),
    "bf16": Carried("precision.dtype", {True: "bf16"}, _DTYPE),
    "loss_scale": Carried("precision.loss_scale", how="only of fp16; 0 is a dynamic one"),
    "initial_loss_scale": Carried("precision.initial_loss_scale", how=_SCALE),
    "loss_scale_window": Carried("precision.loss_scale_window", how=_SCALE),
    "hysteresis": Carried("precision.hysteresis", how=_SCALE),
    "min_loss_scale": Carried("precision.min_loss_scale", how=_SCALE),
    "min_scale": Carried("precision.min_loss_scale", how=_SCALE),
    "accumulate_allreduce_grads_in_fp32": Carried("precision.grad_reduce_in_fp32", {True: True}, _SUMS),
    "fp32_allreduce": Carried("precision.grad_reduce_in_fp32", {True: True}, _SUMS),
    "grad_reduce_in_bf16": Carried("precision.grad_reduce_in_fp32", {True: False}, _SUMS),
    "fp16_lm_cross_entropy": Carried("precision.fp16_lm_cross_entropy"),
    "fp32_residual_connection": NotSupported("the residual stream is kept in precision.dtype, not in fp32"),
    "embedding_weights_in_fp32": NotSupported("embeddings are kept in precision.dtype, not in fp32"),
    "logit_dtype": NotSupported("logits are computed in precision.dtype; the loss turns them into fp32"),
    "disable_bf16_reduced_precision_matmul": NotSupported("torch's own setting says how bf16 products are summed"),
    "use_precision_aware_optimizer": NotSupported(_STATE),
    **alike(
        Unread("it belongs to use_precision_aware_optimizer"),
        "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype",
    ),
    **alike(
        NotSupported("gradients are summed in one dtype for all weights: precision.grad_reduce_in_fp32"),
        """ddp_reduce_scatter_with_fp32_accumulation
        ddp_param_name_patterns_for_fp32_local_accumulation""",
    ),
    **alike(NotSupported(_EIGHT_BITS), "fp8 fp8_e4m3 fp8_hybrid fp4 te_precision_config_file"),
    **alike(NotSupported(_EIGHT_BITS), "kitchen_config_file kitchen_recipe_number use_kitchen_attention"),
    **alike(
        Unread(_OF_EIGHT_BITS),
        """fp4_param fp4_param_gather fp4_quantizer_factory fp4_recipe fp8_amax_compute_algo fp8_amax_history_len
        fp8_interval fp8_margin fp8_output_proj fp8_param_gather fp8_quantizer_factory fp8_recipe fp8_wgrad
        first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 keep_fp8_transpose_cache
        keep_fp8_transpose_cache_when_using_custom_fsdp reuse_grad_buf_for_mxfp8_param_ag
        kitchen_attention_backend""",
    ),
    "check_for_nan_in_loss_and_grad": NoEffect(
        "values that are not finite always end the run, or restart it, and name the ranks"
    ),
}
"""By dest."""
