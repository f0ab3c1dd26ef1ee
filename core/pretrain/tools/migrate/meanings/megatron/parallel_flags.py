"""Flags of the layout over the ranks, and of the communication between them.

validate_args; get_model in megatron/training/training.py; megatron/core/model_parallel_config.py and
megatron/core/distributed/distributed_data_parallel_config.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Replaced, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_TENSOR = "tensor_model_parallel_size, called model_parallel_size before the end of 2020"
_CHUNKS = "layers of a stage / layers of a chunk"
_SEQUENCE = "one sequence is not split over ranks by its positions: its activations take more memory"
_COUNTED = "the embedding and the loss count as a layer of the first and of the last stage"
_ONE_DDP = "there is one kind of data parallelism, with contiguous buffers; engine.name chooses who splits what"
_BUFFERS = "gradients always lie in contiguous buffers"
_STAGE_TENSORS = "parallel.sequence_parallel splits what goes between stages"
_FSDP = "weights are split over the replicas by DeepSpeed: engine.name: deepspeed with engine.zero.stage: 3"
_TIMES = "the times at which gradients and weights are communicated differ: the speed can, the results do not"
_TUNING = "collectives run as the device's plugin sets them up: the speed can differ, the results do not"
_TP_OVERLAP = "collectives of tensor parallelism do not overlap with matrix products in parts: it can be slower"
_GTP = "weights are not split further beside tensor parallelism: they take more memory"

LAYOUT: dict[str, Meaning] = {
    "tensor_model_parallel_size": Carried("parallel.tensor_model_parallel_size", how=_TENSOR),
    "model_parallel_size": Carried("parallel.tensor_model_parallel_size", how=_TENSOR),
    "pipeline_model_parallel_size": Carried("parallel.pipeline_model_parallel_size"),
    "num_layers_per_virtual_pipeline_stage": Carried("parallel.virtual_pipeline_model_parallel_size", how=_CHUNKS),
    "num_virtual_stages_per_pipeline_rank": Carried(
        "parallel.virtual_pipeline_model_parallel_size", how="chunks of a stage; 1 is none"
    ),
    "decoder_first_pipeline_num_layers": Carried("parallel.num_layers_in_first_pipeline_stage"),
    "decoder_last_pipeline_num_layers": Carried("parallel.num_layers_in_last_pipeline_stage"),
    "pipeline_model_parallel_layout": Carried("parallel.pipeline_layers", how="of every stage, such as [5, 6, 6, 5]"),
    "account_for_embedding_in_pipeline_split": Carried("parallel.pipeline_layers", how=_COUNTED),
    "account_for_loss_in_pipeline_split": Carried("parallel.pipeline_layers", how=_COUNTED),
    "sequence_parallel": Carried("parallel.sequence_parallel", {True: True}, "off with one tensor-parallel rank"),
    "context_parallel_size": NotSupported(_SEQUENCE, (1,)),
    **alike(
        Unread("it belongs to context_parallel_size"),
        """cp_comm_type hierarchical_context_parallel_sizes hybrid_context_parallel max_seqlen_per_dp_cp_rank""",
    ),
    "standalone_embedding_stage": NotSupported("the embedding is on the first stage, beside its layers"),
    **alike(
        Unread("only models with a decoder of their own read it"),
        """pipeline_model_parallel_split_rank encoder_pipeline_model_parallel_size
        encoder_tensor_model_parallel_size""",
    ),
    "pp_partition_method": NotSupported(
        "stages have as many layers each, or those of parallel.pipeline_layers; embeddings do not count as layers"
    ),
    "microbatch_group_size_per_vp_stage": NotSupported(
        "as many micro batches pass a chunk in a row as there are stages: memory and speed can differ"
    ),
    **alike(
        NotSupported(
            "the pipeline has no schedule with zero bubbles: it waits longer at the start and the end of a step"
        ),
        "enable_zbh1_pipeline enable_zbh1_exact_semantics",
    ),
    "use_tp_pp_dp_mapping": NotSupported("neighbouring ranks are tensor-parallel, then data-parallel, then stages"),
    **alike(
        NotSupported(_GTP),
        "tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards",
    ),
    **alike(
        Unread("it belongs to tensor_parallel_num_weight_shards"),
        """gtp_remat_opt_in_modules gtp_remat_nccl_ub gtp_expert_remat_nccl_ub
        gtp_remat_reduce_scatter_with_fp32_accumulation""",
    ),
}
"""Flags of the layout."""

DATA_PARALLEL: dict[str, Meaning] = {
    "use_distributed_optimizer": Carried(
        "parallel.use_distributed_optimizer", {True: True}, "or ZeRO-1 of DeepSpeed's file"
    ),
    "overlap_grad_reduce": Carried("parallel.overlap_grad_reduce"),
    "overlap_param_gather": Carried("parallel.overlap_param_gather"),
    "ddp_bucket_size": Carried("parallel.ddp_bucket_size"),
    "ddp_num_buckets": NotSupported("buckets have a size, not a number: parallel.ddp_bucket_size"),
    "DDP_impl": NoEffect(_ONE_DDP),
    **alike(NoEffect(_BUFFERS), "use_contiguous_buffers_in_ddp use_contiguous_buffers_in_local_ddp"),
    "ddp_average_in_collective": NotSupported("gradients are divided before they are summed: their last bits differ"),
    "gradient_reduce_div_fusion": NoEffect("it computes the same mean in one kernel"),
    "num_distributed_optimizer_instances": NotSupported("the optimizer's state is split over all replicas", (1,)),
    **alike(
        NotSupported(_TIMES),
        """align_grad_reduce align_param_gather delay_grad_reduce delay_param_gather
        overlap_param_gather_with_optimizer_step ddp_pad_buckets_for_high_nccl_busbw""",
    ),
    **alike(NotSupported(_FSDP), "use_megatron_fsdp use_custom_fsdp use_torch_fsdp2"),
    **alike(
        Unread("it belongs to fully sharded data parallelism: use_megatron_fsdp or use_torch_fsdp2"),
        """data_parallel_sharding_strategy outer_dp_sharding_strategy torch_fsdp2_reshard_after_forward
        fsdp_double_buffer fsdp_manual_registration fsdp_db_use_persist_buf_on_alloc_fail
        suggested_communication_unit_size enable_full_sharding_in_hsdp
        megatron_fsdp_enable_fine_grained_param_gather megatron_fsdp_grad_comm_dtype
        megatron_fsdp_main_grads_dtype megatron_fsdp_main_params_dtype megatron_fsdp_max_pool_double_buffer
        megatron_fsdp_version create_all_gather_group strict_fsdp_dtensor_load""",
    ),
    "check_weight_hash_across_dp_replicas_interval": Carried("train.check_replicas_interval"),
}
"""Flags of data parallelism."""

COMMUNICATION: dict[str, Meaning] = {
    "overlap_p2p_comm": Carried("parallel.overlap_p2p_comm", how="of the interleaved schedule alone"),
    "distributed_timeout_minutes": Carried("parallel.distributed_timeout_minutes"),
    "distributed_timeout_seconds_after_init": NotSupported(
        "collectives have one timeout from the first step to the last"
    ),
    "distributed_backend": Replaced("the device's plugin says which collectives it has: --backend"),
    "local_rank": NoEffect("pretrain starts and joins its ranks by itself; under torchrun it is torchrun's"),
    "lazy_mpu_init": NoEffect("groups are made once, when the run starts"),
    "fake_process_group": NotSupported("all ranks of a run communicate"),
    "use_ring_exchange_p2p": NoEffect("the device's plugin says how its point-to-point calls are made"),
    "scatter_gather_tensors_in_pipeline": NoEffect(_STAGE_TENSORS),
    "deallocate_pipeline_outputs": NoEffect("outputs of a stage are always freed once they are sent"),
    "overlap_p2p_comm_warmup_flush": NotSupported(_TIMES),
    **alike(
        NoEffect("groups of gloo are only for the host, and change no number"),
        "enable_gloo_process_groups use_gloo_process_groups",
    ),
    **alike(
        NotSupported(_TUNING),
        """nccl_communicator_config_path nccl_ub disable_symmetric_registration use_sharp sharp_enabled_group
        high_priority_stream_groups high_priority_a2a_comm_stream pipeline_model_parallel_comm_backend
        symmetric_ar_type""",
    ),
    **alike(
        NoEffect("it works under tensor parallelism as the kernels do, and changes no number"),
        """async_tensor_model_parallel_allreduce no_async_tensor_model_parallel_allreduce
        async_tensor_parallel_allreduce""",
    ),
    "tp_comm_overlap": NotSupported(_TP_OVERLAP),
    **alike(
        Unread("it belongs to tp_comm_overlap"),
        """tp_comm_overlap_ag tp_comm_overlap_cfg tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag
        tp_comm_split_rs tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_bootstrap_backend""",
    ),
}
"""Flags of the communication."""

PARALLEL = LAYOUT | DATA_PARALLEL | COMMUNICATION
"""All of them, by dest."""
