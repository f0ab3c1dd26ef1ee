"""Flags of models other than a dense GPT, of uses beside pretraining, and of MindSpeed-LLM.

_add_moe_args, _add_mla_args, _add_vision_args, _add_biencoder_args and their like in megatron/training/arguments.py;
TransformerConfig in megatron/core/transformer/transformer_config.py. _add_inference_args, _add_rl_args and
_add_sft_args; megatron/post_training; _add_distillation_args in microsoft's megatron/arguments.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import (
    OTHER_MODEL,
    Ignored,
    Mapped,
    NoEffect,
    NotSupported,
    Replaced,
    alike,
    other_model,
)

if TYPE_CHECKING:
    from pretrain.tools.migrate.meaning import Meaning


_DENSE = "the model has no experts: every token passes one MLP in each layer"
_OF_EXPERTS = "it belongs to num_experts, and mixtures of experts are not supported"
_HYBRID = "all layers have softmax attention and an MLP: none is Mamba's or has linear attention"
_OF_HYBRIDS = "it belongs to layers without softmax attention: hybrid_layer_pattern or experimental_attention_variant"

LAYERS: dict[str, Meaning] = {
    **alike(other_model(_DENSE, (0, 1, [0], [1])), "num_experts num_experts_switch moe_num_experts"),
    **alike(
        Ignored(_OF_EXPERTS),
        """mlp_type topk moe_* expert_* create_moe_param_group use_tutel enable_expert_tensor_parallelism
        overlap_moe_expert_parallel_comm overlap_dispatch_backward_with_experts_wgrad
        ep_overlap_early_attn_memory_release use_grouped_gemm_for_shared_expert""",
    ),
    "multi_latent_attention": other_model("keys and values come from projections of their own, not from latents"),
    **alike(
        Ignored("it belongs to multi_latent_attention"),
        """q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim mscale mscale_all_dim cache_mla_latents
        mla_down_proj_fusion""",
    ),
    **alike(
        other_model(_HYBRID),
        """is_hybrid_model hybrid_layer_pattern hybrid_override_pattern hybrid_attention_ratio hybrid_mlp_ratio
        experimental_attention_variant""",
    ),
    **alike(Ignored(_OF_HYBRIDS), "mamba_* use_mamba_mem_eff_path disable_mamba_mem_eff_path linear_* gdp_*"),
    **alike(Ignored("it belongs to experimental_attention_variant"), "dsa_*"),
    "mtp_num_layers": other_model("the loss is that of the next token alone: no layers predict those after it", (0,)),
    **alike(Ignored("it belongs to mtp_num_layers"), "mtp_* freeze_base_for_mtp"),
    "enable_mhc_connections": other_model("there is one residual stream"),
    **alike(Ignored("it belongs to enable_mhc_connections"), "mhc_*"),
    "retro_add_retriever": other_model("the model retrieves no text"),
}
"""Flags of experts, and of layers other than attention and MLP; "moe_*" are all that begin so."""

PROGRAMS: dict[str, Meaning] = {
    **alike(Ignored("only the training of Retro reads it"), "retro_*"),
    **alike(
        Ignored("only the training of BERT or T5 reads it"),
        "bert_* mask_prob short_seq_prob noise_density mean_noise_span_length output_bert_embeddings",
    ),
    **alike(
        Ignored("only retrieval with two encoders reads it"),
        """ict_* biencoder_projection_dim biencoder_shared_query_context_model titles_data_path query_in_block_prob
        use_one_sent_docs evidence_data_path retriever_report_topk_accuracies report_topk_accuracies
        retriever_score_scaling retriever_seq_length block_data_path embedding_path indexer_batch_size
        indexer_log_interval faiss_use_gpu sample_rate""",
    ),
    **alike(
        Ignored("only the training on images reads it"),
        """num_classes img_dim img_h img_w num_channels patch_dim classes_fraction data_per_class_fraction vision_*
        swin_backbone_type mask_type mask_factor iter_per_epoch dino_*""",
    ),
}
"""Flags that other programs than pretrain_gpt.py read."""

_TEACHER = "there is no teacher: the loss is that of the text alone"
_REWARDS = "the loss is that of the text: there are no rewards and no generated samples"
_CHATS = "samples are pieces of running text: conversations are not rendered, and all tokens count in the loss"

USES: dict[str, Meaning] = {
    **alike(
        Ignored("only inference reads it"),
        """inference_* max_tokens_to_oom flash_decode decode_only_cuda_graphs enable_chunked_prefill
        disable_chunked_prefill mlp_chunks_for_prefill nccl_all_reduce_for_prefill num_speculative_tokens
        offset_sampling_seed_by_dp_rank use_legacy_static_engine""",
    ),
    **alike(NotSupported("it trains; pretrain generate continues a prompt"), "inference ds_inference"),
    "perform_rl_step": NotSupported(_REWARDS),
    **alike(Ignored("it belongs to perform_rl_step"), "grpo_* langrl_* refit_method rl_*"),
    **alike(NotSupported(_TEACHER), "kd mos load_teacher logits_load_dir export_kd_teacher_load export_kd_cfg"),
    **alike(
        Ignored("it belongs to a teacher: kd, load_teacher, logits_load_dir or export_kd_teacher_load"),
        """kd_* hidden_size_teacher num_attention_heads_teacher num_experts_teacher num_layers_teacher
        teacher_model_config qad_train_target export_kd_* logits_load_*""",
    ),
    "logits_save_dir": NotSupported("logits are not written to files"),
    **alike(Ignored("it belongs to logits_save_dir"), "logits_save_*"),
    "sft": NotSupported(_CHATS),
    "sft_tokenizer_prompt_format": Ignored("it belongs to sft"),
    **alike(
        Ignored("only the fine-tuning of post_training reads it"),
        "finetune_data_files finetune_data_split finetune_hf_dataset",
    ),
    "modelopt_enabled": NotSupported("weights are not quantized or pruned"),
    **alike(Ignored("only the export of a trained model reads it"), "export_*"),
    "yaml_cfg": NotSupported("a file of settings is a source of its own: name it in the command beside the script"),
}
"""Flags of inference, rewards, distillation, fine-tuning and export."""

_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others"
_MEMORY = "the device's memory is used without it: the training takes more of it"
_SPEED = "it changes speed alone, not the results"
_TUNED = "weights are all trained, on pieces of running text: there is no fine-tuning"
_WEIGHTS = "checkpoint.load takes Hugging Face's weights, and pretrain checkpoint convert writes them"

MINDSPEED: dict[str, Meaning] = {
    **alike(
        NoEffect(_FUSION),
        """use_fused_swiglu use_fused_rmsnorm use_fused_rotary_pos_emb use_fused_mlp gemm_gradient_accumulation_fusion
        use_fusion_attn_v2 shape_order jit_compile""",
    ),
    "npu_deterministic": Mapped("train.deterministic_mode"),
    "use_deter_comp": Mapped("train.deterministic_mode"),
    "ai_framework": NoEffect("a training runs on PyTorch, whatever the device"),
    "disable_gloo_group": NoEffect("groups of gloo are only for the host, and change no number"),
    "no_shared_storage": NotSupported("index files are written once, so that all nodes need to see them"),
    **alike(
        NotSupported(_MEMORY),
        """swap_attention swap_optimizer swap_optimizer_times swap_modules reuse_fp32_param recompute_in_advance
        recompute_activation_function recompute_activation_function_num_layers enable_recompute_layers_per_pp_rank
        recompute_norm adaptive_recompute_enable o2_optimizer o2_gradient""",
    ),
    **alike(NoEffect(_SPEED), "use_mc2 use_ascend_mc2 use_ascend_coc coc_* schedules_method hccl_*"),
    **alike(
        Ignored("it belongs to context_parallel_size"),
        """context_parallel_algo use_cp_send_recv_overlap use_fused_ring_attention_update ulysses_degree_in_cp
        kv_head_repeat_before_uly_alltoall cp_window_size""",
    ),
    "attention_mask_type": other_model("attention is causal", ("causal",)),
    "num_layer_list": NotSupported("write the layers of every stage into parallel.pipeline_layers"),
    **alike(Replaced(_WEIGHTS), "enable_hf2mg_convert enable_mg2hf_convert model_type_hf hf_cfg_dir"),
    **alike(
        Replaced("--max-restarts starts ranks that fail again from the last checkpoint"),
        "enable_high_availability enable_hbmfault_repair enable_optimizer_state_local_copy",
    ),
    **alike(NotSupported(_TUNED), "stage is_instruction_dataset"),
    "lora_*": other_model("all weights are trained, and there are no adapters beside them"),
    **alike(
        Ignored("only fine-tuning, or the preparation of its data, reads it"),
        """handler_name prompt_type prompt_type_path variable_seq_lengths pad_to_multiple_of tokenizer_padding_side
        no_cut_token padded_samples fix_sub_seq_length full_shuffle_instruction_dataset""",
    ),
    **alike(
        Ignored(_OF_EXPERTS),
        """first_k_dense_replace n_shared_experts norm_topk_prob fix_router seq_aux num_zero_experts shared_expert_gate
        topk_softmax_in_fp32 use_fused_moe_token_permute_and_unpermute router_gating_in_fp32""",
    ),
    **alike(Ignored("it belongs to multi_latent_attention"), "mla_* enable_mla_*"),
    "post_norm": other_model("a layer has a norm before attention and MLP, and none after them"),
    "geglu": other_model("model.activation is gelu, gelu_tanh or swiglu; there is no GEGLU"),
    "sliding_window": other_model("a token sees all before it, not only a window of them"),
    **alike(
        other_model("logits are as they are, not capped by tanh"), "output_logit_softcapping attn_logit_softcapping"
    ),
    **alike(
        other_model(OTHER_MODEL),
        """noop_layers rope_scaling_type use_glm_rope no_post_layer_norm input_embeds_norm gelu_tanh
        add_rmsnorm_offset query_pre_attn_scalar scale_emb scale_depth
        embedding_multiplier_scale output_multiplier_scale add_dense_bias add_output_layer_bias partial_rotary_factor
        interleave_sliding_window square_alibi_mask fill_neg_inf enable_dsa_indexer enable_mhc
        use_sparse_flash_attn full_attention_interval cla_share_factor share_kvstates""",
    ),
    **alike(
        Ignored("it belongs to rope_scaling_type"),
        """rope_scaling_* rope_factor beta_fast beta_slow long_factor short_factor long_mscale short_mscale
        longrope_freqs_type low_freq_factor high_freq_factor original_max_position_embeddings original_seq_len""",
    ),
    **alike(Ignored("it belongs to enable_dsa_indexer"), "index_* indexer_* use_fused_lightning_*"),
    **alike(
        NotSupported("norms keep their weights in precision.dtype"), "init_norm_weight_in_fp32 rmsnorm_weight_in_fp32"
    ),
}
"""Flags that MindSpeed-LLM adds to Megatron-LM's (mindspeed_llm/training/arguments.py, and MindSpeed's own)."""
