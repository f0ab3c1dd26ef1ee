"""Flags of models other than a dense GPT: mixtures of experts, other layers, and programs beside pretrain_gpt.py.

_add_moe_args, _add_mla_args, _add_vision_args, _add_biencoder_args and their like in megatron/training/arguments.py;
TransformerConfig in megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import NotSupported, Unread, alike

if TYPE_CHECKING:
    from pretrain.tools.migrate.meaning import Meaning


_DENSE = "the model has no experts: every token passes one MLP in each layer"
_OF_EXPERTS = "it belongs to num_experts, and mixtures of experts are not supported"
_OF_LATENTS = "it belongs to multi_latent_attention"
_OF_HYBRIDS = "it belongs to layers without softmax attention: hybrid_layer_pattern or experimental_attention_variant"
_OF_SPARSE = "it belongs to experimental_attention_variant"
_OF_MTP = "it belongs to mtp_num_layers"

EXPERTS: dict[str, Meaning] = {
    **alike(NotSupported(_DENSE, (0, 1)), "num_experts num_experts_switch moe_num_experts"),
    "mlp_type": Unread(_OF_EXPERTS),
    **alike(
        Unread(_OF_EXPERTS),
        """topk expert_interval create_moe_param_group use_tutel enable_expert_tensor_parallelism expert_parallel
        expert_model_parallel_size expert_tensor_parallel_size overlap_moe_expert_parallel_comm
        overlap_dispatch_backward_with_experts_wgrad ep_overlap_early_attn_memory_release
        use_grouped_gemm_for_shared_expert moe_per_layer_logging moe_apply_probs_on_input moe_aux_loss_coeff
        moe_combine_bwd_dtype moe_deepep_num_sms moe_dispatch_fwd_dtype moe_enable_deepep
        moe_enable_routing_replay moe_eval_capacity_factor moe_expert_capacity_factor moe_expert_parallel_size
        moe_expert_rank_capacity_factor moe_extended_tp moe_ffn_hidden_size moe_flex_dispatcher_backend
        moe_flex_dispatcher_num_sms moe_grouped_gemm moe_hybridep_num_blocks_permute
        moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing
        moe_hybridep_pad_uneven_dispatch_inputs moe_input_jitter_eps moe_latent_size moe_layer_freq
        moe_layer_recompute moe_loss_coeff moe_min_capacity moe_mlp_glu_interleave_size moe_ncclep_static_shape
        moe_ncclep_zero_copy moe_pad_expert_input_to_capacity moe_pad_experts_for_cuda_graph_inference
        moe_paged_stash moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda
        moe_paged_stash_page_size moe_permute_fusion moe_permute_fusion_into_hybridep moe_router_bias_update_rate
        moe_router_dtype moe_router_enable_expert_bias moe_router_force_biased moe_router_force_load_balancing
        moe_router_fusion moe_router_group_topk moe_router_load_balancing_type moe_router_num_groups
        moe_router_padding_for_fp8 moe_router_padding_for_quantization moe_router_pre_softmax
        moe_router_quantile_balancing_ema moe_router_score_function moe_router_topk
        moe_router_topk_limited_devices moe_router_topk_scaling_factor moe_router_type
        moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits moe_routing_trace_dump_weights
        moe_routing_trace_max_training_iters moe_routing_trace_path moe_shared_expert_gate
        moe_shared_expert_glu_interleave_size moe_shared_expert_intermediate_size moe_shared_expert_overlap
        moe_single_grouped_bias moe_single_grouped_weight moe_token_dispatcher_type moe_token_drop_policy
        moe_token_dropping moe_top2_2nd_expert_sampling moe_train_capacity_factor moe_upcycling_granularity
        moe_use_grouped_tensor moe_use_legacy_grouped_gemm moe_use_upcycling moe_z_loss_coeff""",
    ),
}
"""Flags of mixtures of experts."""

LAYERS: dict[str, Meaning] = {
    "multi_latent_attention": NotSupported("keys and values come from projections of their own, not from latents"),
    **alike(
        Unread(_OF_LATENTS),
        """q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim mscale mscale_all_dim
        cache_mla_latents mla_down_proj_fusion""",
    ),
    **alike(
        NotSupported("all layers have softmax attention and an MLP: none is Mamba's or has linear attention"),
        """is_hybrid_model hybrid_layer_pattern hybrid_override_pattern hybrid_attention_ratio hybrid_mlp_ratio
        experimental_attention_variant""",
    ),
    **alike(
        Unread(_OF_HYBRIDS),
        """mamba_head_dim mamba_num_groups mamba_num_heads mamba_state_dim mamba_training_ssm_states_dtype
        mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype use_mamba_mem_eff_path
        disable_mamba_mem_eff_path linear_attention_freq linear_conv_kernel_dim linear_key_head_dim
        linear_num_key_heads linear_num_value_heads linear_value_head_dim gdp_cutedsl_kernel
        gdp_num_chunk_states_to_recompute gdp_num_householder""",
    ),
    **alike(
        Unread(_OF_SPARSE),
        """dsa_indexer_head_dim dsa_indexer_k_norm_epsilon dsa_indexer_k_norm_fp32 dsa_indexer_loss_coeff
        dsa_indexer_n_heads dsa_indexer_rope_interleaved dsa_indexer_rotate_activation dsa_indexer_scoring_relu
        dsa_indexer_skip_topk_offset dsa_indexer_topk dsa_indexer_topk_freq dsa_indexer_use_sparse_loss
        dsa_kernel_backend""",
    ),
    "mtp_num_layers": NotSupported("the loss is that of the next token alone: no layers predict those after it", (0,)),
    **alike(
        Unread(_OF_MTP),
        """mtp_detach_heads mtp_hsm mtp_hybrid_override_pattern mtp_loss_scaling_factor mtp_standalone
        mtp_use_repeated_layer freeze_base_for_mtp""",
    ),
    "enable_mhc_connections": NotSupported("there is one residual stream"),
    **alike(
        Unread("it belongs to enable_mhc_connections"),
        "mhc_init_gating_factor mhc_num_residual_streams mhc_recompute_layer_num mhc_sinkhorn_iterations",
    ),
    "retro_add_retriever": NotSupported("the model retrieves no text"),
}
"""Flags of layers other than attention and MLP."""

PROGRAMS: dict[str, Meaning] = {
    **alike(
        Unread("only the training of Retro reads it"),
        """retro_workdir retro_project_dir retro_attention_gate retro_cyclic_train_iters
        retro_encoder_attention_dropout retro_encoder_hidden_dropout retro_encoder_layers retro_num_neighbors
        retro_num_retrieved_chunks retro_return_doc_ids retro_verify_neighbor_count""",
    ),
    **alike(
        Unread("only the training of BERT or T5 reads it"),
        """bert_binary_head bert_load mask_prob short_seq_prob noise_density mean_noise_span_length
        output_bert_embeddings bert_embedder_type""",
    ),
    **alike(
        Unread("only retrieval with two encoders reads it"),
        """ict_head_size ict_load biencoder_projection_dim biencoder_shared_query_context_model titles_data_path
        query_in_block_prob use_one_sent_docs evidence_data_path retriever_report_topk_accuracies
        report_topk_accuracies retriever_score_scaling retriever_seq_length block_data_path embedding_path
        indexer_batch_size indexer_log_interval faiss_use_gpu sample_rate""",
    ),
    **alike(
        Unread("only the training on images reads it"),
        """num_classes img_dim img_h img_w num_channels patch_dim classes_fraction data_per_class_fraction
        vision_pretraining vision_pretraining_type vision_backbone_type swin_backbone_type mask_type mask_factor
        iter_per_epoch dino_bottleneck_size dino_freeze_last_layer dino_head_hidden_size dino_local_crops_number
        dino_local_img_size dino_norm_last_layer dino_teacher_temp dino_warmup_teacher_temp
        dino_warmup_teacher_temp_epochs""",
    ),
}
"""Flags that other programs than pretrain_gpt.py read."""

FAMILIES = EXPERTS | LAYERS | PROGRAMS
"""All of them, by dest."""


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
