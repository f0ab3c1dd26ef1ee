"""Flags of models other than a dense GPT: mixtures of experts, other layers, and programs beside pretrain_gpt.py.

_add_moe_args, _add_mla_args, _add_vision_args, _add_biencoder_args and their like in megatron/training/arguments.py;
TransformerConfig in megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

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
