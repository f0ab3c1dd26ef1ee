"""Flags of uses beside pretraining: inference, reinforcement learning, distillation, fine-tuning and export.

_add_inference_args, _add_rl_args and _add_sft_args in megatron/training/arguments.py; megatron/post_training;
_add_distillation_args in microsoft's megatron/arguments.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_TEACHER = "there is no teacher: the loss is that of the text alone"
_REWARDS = "the loss is that of the text: there are no rewards and no generated samples"
_CHATS = "samples are pieces of running text: conversations are not rendered, and all tokens count in the loss"

USES: dict[str, Meaning] = {
    **alike(
        Unread("only inference reads it"),
        """inference_batch_times_seqlen_threshold max_tokens_to_oom inference_coordinator_port
        inference_cuda_graph_all_prefills inference_cuda_graph_max_tokens inference_cuda_graph_scope
        inference_disable_ep_consensus inference_disable_triton_nvls_kernels inference_dynamic_batching
        inference_dynamic_batching_async_sched_mode inference_dynamic_batching_block_size
        inference_dynamic_batching_buffer_guaranteed_fraction inference_dynamic_batching_buffer_overflow_factor
        inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_chunk_size
        inference_dynamic_batching_cuda_graph_max_tokens inference_dynamic_batching_cuda_graph_mixed_prefill_count
        inference_dynamic_batching_cuda_graph_sizing_distribution inference_dynamic_batching_enable_prefix_caching
        inference_dynamic_batching_logprobs_mode inference_dynamic_batching_mamba_memory_ratio
        inference_dynamic_batching_max_requests inference_dynamic_batching_max_requests_override
        inference_dynamic_batching_max_tokens inference_dynamic_batching_max_tokens_override
        inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_paused_buffer_size_gb
        inference_dynamic_batching_prefix_caching_coordinator_policy
        inference_dynamic_batching_prefix_caching_eviction_policy
        inference_dynamic_batching_prefix_caching_mamba_gb inference_dynamic_batching_prefix_caching_routing_alpha
        inference_dynamic_batching_sampling_backend inference_dynamic_batching_track_generated_token_events
        inference_dynamic_batching_track_paused_request_events inference_dynamic_batching_unified_memory_level
        inference_fuse_tp_communication inference_grouped_gemm_backend inference_logging_step_interval
        inference_max_batch_size inference_max_requests inference_max_seq_length
        inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type inference_rng_tracker
        inference_shards inference_text_gen_server_logging inference_use_synchronous_zmq_collectives
        inference_wandb_logging inference_wandb_logging_step_interval flash_decode decode_only_cuda_graphs
        enable_chunked_prefill disable_chunked_prefill mlp_chunks_for_prefill nccl_all_reduce_for_prefill
        num_speculative_tokens offset_sampling_seed_by_dp_rank use_legacy_static_engine""",
    ),
    **alike(NotSupported("it trains; pretrain generate continues a prompt"), "inference ds_inference"),
    "perform_rl_step": NotSupported(_REWARDS),
    **alike(
        Unread("it belongs to perform_rl_step"),
        """grpo_clamp_eps_lower grpo_clamp_eps_upper grpo_default_temperature grpo_default_top_p
        grpo_entropy_term_weight grpo_filter_groups_with_same_reward grpo_group_size grpo_iterations grpo_kl_beta
        grpo_prompts_per_step langrl_env_config langrl_external_server
        langrl_inference_server_conversation_template langrl_inference_server_type refit_method
        rl_calculate_intra_group_similarity rl_consumption_granularity rl_default_temperature rl_default_top_k
        rl_default_top_p rl_durable_rollout_bank rl_generation_batch_size rl_generation_lag
        rl_importance_sampling_truncation_coef rl_inference_expert_model_parallel_size
        rl_inference_expert_tensor_model_parallel_size rl_inference_logprobs_is_correction
        rl_inference_model_unified_memory_level rl_inference_parsers rl_inference_pipeline_model_parallel_size
        rl_inference_tensor_model_parallel_size rl_kv_cache_management_mode rl_max_inflight_requests
        rl_num_parallel_generation_batches rl_num_parallel_generations
        rl_offload_inference_model_weights_when_idle rl_offload_kv_cache_during_training
        rl_offload_optimizer_during_inference rl_parallel_generation_tasks rl_partial_rollouts
        rl_persist_cuda_graphs rl_profile rl_profile_dir rl_prompts_per_eval rl_remove_kv_cache_during_training
        rl_reset_cuda_graphs rl_rollout_bank_dir rl_rollout_bank_max_bytes rl_sequence_packing_algo
        rl_sequence_packing_bin_size rl_sequence_packing_max_sequences_per_bin rl_skip_bos_token
        rl_submission_granularity rl_training_cuda_graphs rl_use_sequence_packing rl_verify_model_weights_swap""",
    ),
    **alike(NotSupported(_TEACHER), "kd mos load_teacher logits_load_dir export_kd_teacher_load export_kd_cfg"),
    **alike(
        Unread("it belongs to a teacher: kd, load_teacher, logits_load_dir or export_kd_teacher_load"),
        """kd_alpha_ce kd_beta_ce kd_temp hidden_size_teacher num_attention_heads_teacher num_experts_teacher
        num_layers_teacher teacher_model_config qad_train_target export_kd_teacher_ckpt_format
        export_kd_teacher_model_config logits_load_decode_threads logits_load_ignore_errors
        logits_load_kd_loss_alpha logits_load_msc_prefetch_depth logits_load_prefetch_factor""",
    ),
    "logits_save_dir": NotSupported("logits are not written to files"),
    **alike(
        Unread("it belongs to logits_save_dir"),
        "logits_save_dtype logits_save_top_k logits_save_top_p logits_save_top_p_min_k",
    ),
    "sft": NotSupported(_CHATS),
    "sft_tokenizer_prompt_format": Unread("it belongs to sft"),
    **alike(
        Unread("only the fine-tuning of post_training reads it"),
        "finetune_data_files finetune_data_split finetune_hf_dataset",
    ),
    "modelopt_enabled": NotSupported("weights are not quantized or pruned"),
    **alike(
        Unread("only the export of a trained model reads it"),
        """export_default_te_spec export_draft_vocab_size export_eagle_algorithm export_force_local_attention
        export_freeze_mtp export_kv_cache_quant export_legacy_megatron export_model_type
        export_moe_apply_probs_on_input export_num_eagle_layers export_num_medusa_heads export_num_mtp
        export_offline_model export_qk_l2_norm export_quant_cfg export_real_quant_cfg export_te_mcore_model""",
    ),
    "yaml_cfg": NotSupported("a file of settings is a source of its own: name it in the command beside the script"),
}
"""By dest."""
