"""Flags of kernels, and of activations that are computed again or put elsewhere.

core_transformer_config_from_args; megatron/core/fusions; CheckpointFunction in megatron/mpu/random.py of the versions
before 2022; setup_deepspeed_random_and_activation_checkpointing in Megatron-DeepSpeed's megatron/initialize.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron.model import FLASH
from pretrain.tools.migrate.setting import Derived, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others"
_ATTENTION = "flash if one of the flags asks for it, softmax for unfused and local, else auto"
_FLASH = Mapped(
    "kernels.attention", {True: "flash"}, _ATTENTION, "auto, the default, takes it where the backend has it"
)
_WHOLE = "whole layers with checkpoint_activations or a method of it, else as recompute_granularity says"
_SPLIT = "of whole layers, and with more than one tensor-parallel rank"
_HOST = "activations stay on the device or are computed again: section recompute"
_GRAPHS = "steps are not recorded as CUDA graphs: the host launches every kernel, which can be slower"
_CHUNKED = "matrix products are computed whole, not in parts: they take more memory at a time"
_DELAYED = "gradients of weights are computed with those of activations, not later: it can be slower"

KERNELS: dict[str, Meaning] = {
    **dict.fromkeys(FLASH, _FLASH),
    "attention_backend": Mapped(
        "kernels.attention",
        {"auto": "auto", "fused": "auto", "flash": "flash", "unfused": "softmax", "local": "softmax"},
        _ATTENTION,
        "auto, flash, triangle, softmax or a kernel's own name",
    ),
    "use_triangle_attn": Mapped("kernels.attention", {True: "triangle"}, _ATTENTION),
    "flash_attention_version": NotSupported(
        "the backend has one kernel for flash attention: pretrain explain names it"
    ),
    "abort_on_unmet_fused_kernel_constraints": Replaced(
        "kernels.fallback: forbid refuses to start without a plugin's kernels"
    ),
    **alike(
        NoEffect(_FUSION),
        """masked_softmax_fusion scaled_masked_softmax_fusion scaled_upper_triang_masked_softmax_fusion
        bias_swiglu_fusion bias_dropout_fusion gradient_accumulation_fusion no_persist_layer_norm
        apply_rope_fusion rope_fusion transformer_impl cross_entropy_loss_fusion cross_entropy_fusion_impl
        mem_efficient_ln fused_residual_rmsnorm use_fused_weighted_squared_relu use_transformer_engine_op_fuser
        use_grouped_gemm_for_dense_mlp disable_jit_fuser""",
    ),
    "clone_scatter_output_in_embedding": NoEffect("it only frees the embedding's output sooner"),
    "te_rng_tracker": NoEffect("it makes other random numbers of the same distribution, for dropout"),
    **alike(NotSupported(_DELAYED), "delay_wgrad_compute defer_embedding_wgrad_compute"),
    "wgrad_deferral_limit": Ignored("it belongs to defer_embedding_wgrad_compute"),
    "batch_invariant_mode": NotSupported("results depend on the batch's shape in their last bits"),
    "batch_invariant_backend": Ignored("it belongs to batch_invariant_mode"),
    **alike(
        NotSupported(_GRAPHS, ("none",)),
        "cuda_graph_impl enable_cuda_graph external_cuda_graph optimizer_cuda_graph",
    ),
    **alike(
        Ignored("it belongs to cuda_graph_impl"),
        "cuda_graph_*",
    ),
    **alike(
        NoEffect(_FUSION),
        """bias_activation_fusion persist_layer_norm memory_efficient_layer_norm tp_comm_atomic_ag tp_comm_atomic_rs""",
    ),
    **alike(
        NoEffect("messages between stages are sent in one batch where the backend can"), "batch_p2p_comm batch_p2p_sync"
    ),
    **alike(NoEffect("swiglu, or a gelu, is what activation_func chooses"), "gated_linear_unit"),
    "enable_autocast": NotSupported("the dtype is precision.dtype everywhere", (False,)),
    **alike(NotSupported(_HOST, (False,)), "cpu_offloading cpu_offloading_weights cpu_offloading_activations"),
}
"""Flags of kernels; those of the last lines are only names of a --yaml-cfg file (TransformerConfig)."""

RECOMPUTE: dict[str, Meaning] = {
    "checkpoint_activations": Mapped("recompute.granularity", {True: "full"}, _WHOLE),
    "recompute_activations": Mapped("recompute.granularity", {True: "selective"}, _WHOLE),
    "recompute_granularity": Mapped("recompute.granularity", {"full": "full", "selective": "selective"}, _WHOLE),
    "activations_checkpoint_method": Mapped("recompute.method", {"uniform": "uniform", "block": "block"}, _WHOLE),
    "recompute_method": Mapped("recompute.method", {"uniform": "uniform", "block": "block"}, _WHOLE),
    "recompute_num_layers": Mapped("recompute.num_layers", how=_WHOLE),
    "checkpoint_num_layers": Mapped("recompute.num_layers", how=_WHOLE),
    "activations_checkpoint_num_layers": Mapped("recompute.num_layers", how=_WHOLE),
    **alike(
        Mapped("recompute.distribute_saved_activations", {True: True}, _SPLIT),
        "distribute_saved_activations distribute_checkpointed_activations partition_activations",
    ),
    "recompute_modules": NotSupported(
        "selective recomputes the attention between its projections, and no other part of a layer", (["core_attn"],)
    ),
    "deepspeed_activation_checkpointing": NoEffect("section recompute is the same for both engines"),
    "synchronize_each_layer": NoEffect("recomputation needs no barriers"),
    "profile_backward": NoEffect("logging.log_timers: true times the phases of a step"),
    "checkpoint_in_cpu": NotSupported("inputs of recomputed layers stay on the device: they take more of its memory"),
    "contigious_checkpointing": NotSupported(
        "inputs of recomputed layers do not lie in one buffer: the device's memory can get more fragmented"
    ),
    "split_transformers": NotSupported("layers are recomputed whole, not in halves: the peak of memory is higher"),
    "scattered_embeddings": NotSupported(
        "the embedding's output is split by parallel.sequence_parallel alone: without it, it takes more memory"
    ),
    "memory_centric_tiled_linear": NotSupported(_CHUNKED),
    "tile_factor": Ignored("it belongs to memory_centric_tiled_linear"),
    "mlp_chunks_for_training": NotSupported(_CHUNKED, (1,)),
}
"""Flags of activations that are computed again."""

OFFLOAD: dict[str, Meaning] = {
    **alike(
        NotSupported(_HOST),
        "cpu_offloading_num_layers fine_grained_activation_offloading",
    ),
    **alike(
        Ignored("it belongs to the offload of activations"),
        """cpu_offloading_retain_pinned_cpu_buffers fine_grained_offloading_max_inflight_offloads
        activation_offload_fraction offload_modules min_offloaded_tensor_size delay_offload_until_cuda_graph
        delta_offload_bytes_across_pp_ranks""",
    ),
    "optimizer_cpu_offload": NotSupported(
        "the optimizer's state stays on the device; engine.zero.offload_optimizer of DeepSpeed puts it into host memory"
    ),
    **alike(
        Ignored("it belongs to optimizer_cpu_offload"),
        """optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d pin_cpu_grads pin_cpu_params
        use_torch_optimizer_for_cpu_offload""",
    ),
}
"""Flags of what is put into host memory."""

COMPUTATION = KERNELS | RECOMPUTE | OFFLOAD
"""All of them, by dest."""


_DTYPE = "fp16 or bf16, else fp32"
_SCALE = "only of fp16, and only without a fixed loss_scale"
_SUMS = "of fp16 as the flags say; bf16 is summed in fp32 unless grad_reduce_in_bf16 is given"
_EIGHT_BITS = "matrix products are computed in precision.dtype, not in 8 or 4 bits: slower, with more memory"
_STATE = "main weights, their gradients and the moments of Adam are fp32: they take more memory"
_OF_EIGHT_BITS = "it belongs to fp8 or fp4"

PRECISION: dict[str, Meaning] = {
    "fp16": Mapped("precision.dtype", {True: "fp16"}, _DTYPE),
    "bf16": Mapped("precision.dtype", {True: "bf16"}, _DTYPE),
    "loss_scale": Mapped("precision.loss_scale", how="only of fp16; 0 is a dynamic one"),
    "initial_loss_scale": Mapped("precision.initial_loss_scale", how=_SCALE),
    "loss_scale_window": Mapped("precision.loss_scale_window", how=_SCALE),
    "hysteresis": Mapped("precision.hysteresis", how=_SCALE),
    "min_loss_scale": Mapped("precision.min_loss_scale", how=_SCALE),
    "min_scale": Mapped("precision.min_loss_scale", how=_SCALE),
    "accumulate_allreduce_grads_in_fp32": Mapped("precision.grad_reduce_in_fp32", {True: True}, _SUMS),
    "fp32_allreduce": Mapped("precision.grad_reduce_in_fp32", {True: True}, _SUMS),
    "grad_reduce_in_bf16": Mapped("precision.grad_reduce_in_fp32", {True: False}, _SUMS),
    "fp16_lm_cross_entropy": Mapped("precision.fp16_lm_cross_entropy"),
    "fp32_residual_connection": NotSupported("the residual stream is kept in precision.dtype, not in fp32"),
    "embedding_weights_in_fp32": NotSupported("embeddings are kept in precision.dtype, not in fp32"),
    "logit_dtype": NotSupported("logits are computed in precision.dtype; the loss turns them into fp32"),
    "disable_bf16_reduced_precision_matmul": NotSupported("torch's own setting says how bf16 products are summed"),
    "use_precision_aware_optimizer": NotSupported(_STATE),
    **alike(
        Ignored("it belongs to use_precision_aware_optimizer"),
        "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype",
    ),
    **alike(
        NotSupported("gradients are summed in one dtype for all weights: precision.grad_reduce_in_fp32"),
        """ddp_reduce_scatter_with_fp32_accumulation ddp_param_name_patterns_for_fp32_local_accumulation""",
    ),
    **alike(NotSupported(_EIGHT_BITS), "fp8 fp8_e4m3 fp8_hybrid fp4 te_precision_config_file"),
    **alike(NotSupported(_EIGHT_BITS), "kitchen_config_file kitchen_recipe_number use_kitchen_attention"),
    **alike(
        Ignored(_OF_EIGHT_BITS),
        """fp4_* fp8_* first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16
        keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp reuse_grad_buf_for_mxfp8_param_ag
        kitchen_attention_backend""",
    ),
    "check_for_nan_in_loss_and_grad": NoEffect(
        "values that are not finite always end the run, or restart it, and name the ranks"
    ),
}
"""By dest."""


_IN_FP32 = ("accumulate_allreduce_grads_in_fp32", "fp32_allreduce")


def dtype(settings: Settings) -> Derived:
    """Return the dtype of weights and activations."""
    for name in ("fp16", "bf16"):
        if settings.value(name):
            return Derived(name, (name,))
    return Derived("fp32", ("fp16", "bf16"))


def loss_scale(settings: Settings) -> Derived | None:
    """Return the fixed scale of fp16."""
    given = settings.value("loss_scale")
    return Derived(given, ("loss_scale",)) if given and _is_fp16(settings) else None


def initial_loss_scale(settings: Settings) -> Derived | None:
    """Return where the dynamic scale starts."""
    return _of_dynamic_scale(settings, "initial_loss_scale")


def loss_scale_window(settings: Settings) -> Derived | None:
    """Return the steps after which the dynamic scale grows."""
    return _of_dynamic_scale(settings, "loss_scale_window")


def hysteresis(settings: Settings) -> Derived | None:
    """Return the overflows after which the dynamic scale is halved."""
    return _of_dynamic_scale(settings, "hysteresis")


def min_loss_scale(settings: Settings) -> Derived | None:
    """Return the least dynamic scale, which the versions of 2019 call --min-scale."""
    return _of_dynamic_scale(settings, "min_loss_scale" if settings.value("min_scale") is None else "min_scale")


def grad_reduce_in_fp32(settings: Settings) -> Derived | None:
    """Return whether gradients are summed in fp32, as those of bf16 are there unless a flag says otherwise."""
    kind = dtype(settings).value
    name = next((name for name in _IN_FP32 if settings.value(name)), _IN_FP32[0])
    if kind == "fp16":
        return Derived(bool(settings.value(name)), (name,))
    if kind == "bf16" and settings.value("grad_reduce_in_bf16"):
        return Derived(False, ("grad_reduce_in_bf16",))
    return unused(name, "gradients are summed in fp32 anyway")


def _is_fp16(settings: Settings) -> bool:
    return bool(dtype(settings).value == "fp16")


def _of_dynamic_scale(settings: Settings, name: str) -> Derived | None:
    given = settings.value(name)
    if given is None or not _is_fp16(settings):
        return None
    if settings.value("loss_scale"):
        return unused(name, "the loss scale is fixed")
    return Derived(given, (name,))


FUNCTIONS: Mapping[str, Function] = {
    "precision.dtype": dtype,
    "precision.loss_scale": loss_scale,
    "precision.initial_loss_scale": initial_loss_scale,
    "precision.loss_scale_window": loss_scale_window,
    "precision.hysteresis": hysteresis,
    "precision.min_loss_scale": min_loss_scale,
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
}
"""By key of the recipe."""
