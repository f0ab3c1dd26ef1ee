"""Flags of kernels, and of activations that are computed again or put elsewhere.

core_transformer_config_from_args; megatron/core/fusions; CheckpointFunction in megatron/mpu/random.py of the versions
before 2022; setup_deepspeed_random_and_activation_checkpointing in Megatron-DeepSpeed's megatron/initialize.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Replaced, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others"
_ATTENTION = "flash if one of the flags asks for it, softmax for unfused and local, else auto"
_FLASH = Carried(
    "kernels.attention", {True: "flash"}, _ATTENTION, "auto, the default, takes it where the backend has it"
)
_WHOLE = "whole layers with checkpoint_activations or a method of it, else as recompute_granularity says"
_SPLIT = "of whole layers, and with more than one tensor-parallel rank"
_HOST = "activations stay on the device or are computed again: section recompute"
_GRAPHS = "steps are not recorded as CUDA graphs: the host launches every kernel, which can be slower"
_CHUNKED = "matrix products are computed whole, not in parts: they take more memory at a time"
_DELAYED = "gradients of weights are computed with those of activations, not later: it can be slower"

KERNELS: dict[str, Meaning] = {
    **alike(_FLASH, "use_flash_attn use_flash_attn_v1 use_flash_attn_v2 use_flash_attn_triton use_flash_attn_builder"),
    "attention_backend": Carried(
        "kernels.attention",
        {"auto": "auto", "fused": "auto", "flash": "flash", "unfused": "softmax", "local": "softmax"},
        _ATTENTION,
        "auto, flash, triangle, softmax or a kernel's own name",
    ),
    "use_triangle_attn": Carried("kernels.attention", {True: "triangle"}, _ATTENTION),
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
    "wgrad_deferral_limit": Unread("it belongs to defer_embedding_wgrad_compute"),
    "batch_invariant_mode": NotSupported("results depend on the batch's shape in their last bits"),
    "batch_invariant_backend": Unread("it belongs to batch_invariant_mode"),
    **alike(
        NotSupported(_GRAPHS, ("none",)),
        "cuda_graph_impl enable_cuda_graph external_cuda_graph optimizer_cuda_graph",
    ),
    **alike(
        Unread("it belongs to cuda_graph_impl"),
        "cuda_graph_modules cuda_graph_scope cuda_graph_scope_deprecated cuda_graph_warmup_steps",
    ),
    **alike(
        NoEffect(_FUSION),
        "bias_activation_fusion persist_layer_norm memory_efficient_layer_norm tp_comm_atomic_ag tp_comm_atomic_rs",
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
    "checkpoint_activations": Carried("recompute.granularity", {True: "full"}, _WHOLE),
    "recompute_activations": Carried("recompute.granularity", {True: "selective"}, _WHOLE),
    "recompute_granularity": Carried("recompute.granularity", {"full": "full", "selective": "selective"}, _WHOLE),
    "activations_checkpoint_method": Carried("recompute.method", {"uniform": "uniform", "block": "block"}, _WHOLE),
    "recompute_method": Carried("recompute.method", {"uniform": "uniform", "block": "block"}, _WHOLE),
    "recompute_num_layers": Carried("recompute.num_layers", how=_WHOLE),
    "checkpoint_num_layers": Carried("recompute.num_layers", how=_WHOLE),
    "activations_checkpoint_num_layers": Carried("recompute.num_layers", how=_WHOLE),
    **alike(
        Carried("recompute.distribute_saved_activations", {True: True}, _SPLIT),
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
    "tile_factor": Unread("it belongs to memory_centric_tiled_linear"),
    "mlp_chunks_for_training": NotSupported(_CHUNKED, (1,)),
}
"""Flags of activations that are computed again."""

OFFLOAD: dict[str, Meaning] = {
    **alike(
        NotSupported(_HOST),
        "cpu_offloading_num_layers fine_grained_activation_offloading",
    ),
    **alike(
        Unread("it belongs to the offload of activations"),
        """cpu_offloading_retain_pinned_cpu_buffers fine_grained_offloading_max_inflight_offloads
        activation_offload_fraction offload_modules min_offloaded_tensor_size delay_offload_until_cuda_graph
        delta_offload_bytes_across_pp_ranks""",
    ),
    "optimizer_cpu_offload": NotSupported(
        "the optimizer's state stays on the device; engine.zero.offload_optimizer of DeepSpeed puts it into host memory"
    ),
    **alike(
        Unread("it belongs to optimizer_cpu_offload"),
        """optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d pin_cpu_grads pin_cpu_params
        use_torch_optimizer_for_cpu_offload""",
    ),
}
"""Flags of what is put into host memory."""

COMPUTATION = KERNELS | RECOMPUTE | OFFLOAD
"""All of them, by dest."""
