"""Every key of a recipe arrives where it names: a value that is not the default is looked up in the library's settings.

A key that no library's settings hold stands in ELSEWHERE with what reads it. A new key needs a row in one of the two.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.tiny import tiny
from pretrain.engine.deepspeed.config import deepspeed_config
from pretrain.engine.megatron.data_parallel import data_parallel_config, optimizer_config
from pretrain.engine.optimizers.choice import optimizer_of
from pretrain.model.config import transformer_config
from pretrain.plugins.backend import PointToPoint
from pretrain.recipe.recipe import Recipe, inner_section, keys_of_recipe, walk

MODEL, DDP, OPTIMIZER, DEEPSPEED, ADAM = (
    "TransformerConfig",
    "DDPConfig",
    "OptimizerConfig",
    "DeepSpeed",
    "DeepSpeed's Adam",
)
EXPERTS = ("model.num_experts=4", "model.add_bias_linear=false")
BF16, FP16 = ("precision.dtype=bf16",), ("precision.dtype=fp16",)
SHARDED = ("parallel.use_distributed_optimizer=true",)
STAGES = ("model.num_layers=8", "parallel.pipeline_model_parallel_size=2")
FASTER, APART = ("optimizer.adam_beta2=0.95",), ("optimizer.decoupled_lr=0.25",)
FULL = ("recompute.granularity=full",)


def zero(stage, *more):
    return ("engine.name=deepspeed", f"engine.zero.stage={stage}", *more)


OFFLOADED = zero(2, *BF16, "engine.zero.offload_optimizer.device=cpu")
SWAPPED = zero(3, *BF16, "engine.zero.offload_optimizer={device: nvme, nvme_path: /tmp/swap}")
MANY_BUFFERS = (*SWAPPED, "engine.zero.offload_optimizer.buffer_count=12")
PARAMS = zero(3, *BF16, "engine.zero.offload_param.device=cpu")
PARAMS_SWAPPED = zero(3, *BF16, "engine.zero.offload_param={device: nvme, nvme_path: /tmp/swap}")

ROWS = [
    ("model.num_layers=8", (), {MODEL: {"num_layers": 8}}),
    ("model.hidden_size=128", (), {MODEL: {"hidden_size": 128}}),
    ("model.num_attention_heads=8", (), {MODEL: {"num_attention_heads": 8}}),
    ("model.num_query_groups=2", (), {MODEL: {"num_query_groups": 2}}),
    ("model.kv_channels=32", (), {MODEL: {"kv_channels": 32}}),
    ("model.ffn_hidden_size=96", (), {MODEL: {"ffn_hidden_size": 96}}),
    ("model.activation=swiglu", (), {MODEL: {"gated_linear_unit": True, "activation_func": functional.silu}}),
    ("model.hidden_dropout=0.25", (), {MODEL: {"hidden_dropout": 0.25}}),
    ("model.attention_dropout=0.25", (), {MODEL: {"attention_dropout": 0.25}}),
    ("model.normalization=RMSNorm", (), {MODEL: {"normalization": "RMSNorm"}}),
    ("model.layernorm_epsilon=0.01", (), {MODEL: {"layernorm_epsilon": 0.01}}),
    ("model.add_bias_linear=false", (), {MODEL: {"add_bias_linear": False}}),
    ("model.add_qkv_bias=true", ("model.add_bias_linear=false",), {MODEL: {"add_qkv_bias": True}}),
    ("model.apply_query_key_layer_scaling=true", FP16, {MODEL: {"apply_query_key_layer_scaling": True}}),
    ("model.attention_softmax_in_fp32=false", BF16, {MODEL: {"attention_softmax_in_fp32": False}}),
    ("train.calculate_per_token_loss=true", (), {MODEL: {"calculate_per_token_loss": True}}),
    ("train.deterministic_mode=true", (), {MODEL: {"deterministic_mode": True}}),
    ("train.micro_batch_size=2", zero(1), {DEEPSPEED: {"train_micro_batch_size_per_gpu": 2}}),
    ("train.global_batch_size=16", zero(1), {DEEPSPEED: {"gradient_accumulation_steps": 4}}),
    ("optimizer.name=adam", (), {OPTIMIZER: {"decoupled_weight_decay": False}, ADAM: {"adam_w_mode": False}}),
    ("optimizer.lr=0.25", (), {OPTIMIZER: {"lr": 0.25}}),
    ("optimizer.adam_beta1=0.5", (), {OPTIMIZER: {"adam_beta1": 0.5}, ADAM: {"betas": (0.5, 0.999)}}),
    ("optimizer.adam_beta2=0.5", (), {OPTIMIZER: {"adam_beta2": 0.5}, ADAM: {"betas": (0.9, 0.5)}}),
    ("optimizer.adam_eps=0.5", (), {OPTIMIZER: {"adam_eps": 0.5}, ADAM: {"eps": 0.5}}),
    ("optimizer.exp_avg_dtype=bf16", (), {OPTIMIZER: {"exp_avg_dtype": torch.bfloat16}}),
    ("optimizer.exp_avg_sq_dtype=bf16", FASTER, {OPTIMIZER: {"exp_avg_sq_dtype": torch.bfloat16}}),
    ("optimizer.decoupled_lr=0.25", (), {OPTIMIZER: {"decoupled_lr": 0.25}}),
    ("schedule.decoupled_min_lr=0.125", APART, {OPTIMIZER: {"decoupled_min_lr": 0.125}}),
    ("optimizer.weight_decay=0.25", (), {OPTIMIZER: {"weight_decay": 0.25}, ADAM: {"weight_decay": 0.25}}),
    ("optimizer.clip_grad=0.25", (), {OPTIMIZER: {"clip_grad": 0.25}}),
    ("optimizer.clip_grad=0.25", zero(2), {DEEPSPEED: {"gradient_clipping": 0.25}}),
    ("schedule.min_lr=0.0001", (), {OPTIMIZER: {"min_lr": 0.0001}}),
    (
        "precision.dtype=bf16",
        (),
        {
            MODEL: {"bf16": True, "params_dtype": torch.bfloat16},
            OPTIMIZER: {"bf16": True},
            DEEPSPEED: {"bf16.enabled": True},
        },
    ),
    (
        "precision.dtype=fp16",
        (),
        {
            MODEL: {"fp16": True, "pipeline_dtype": torch.float16},
            OPTIMIZER: {"fp16": True},
            DEEPSPEED: {"fp16.enabled": True},
        },
    ),
    ("precision.loss_scale=64", FP16, {OPTIMIZER: {"loss_scale": 64}, DEEPSPEED: {"fp16.loss_scale": 64}}),
    ("precision.initial_loss_scale=64", FP16, {OPTIMIZER: {"initial_loss_scale": 64}}),
    ("precision.loss_scale_window=7", FP16, {OPTIMIZER: {"loss_scale_window": 7}}),
    ("precision.hysteresis=7", FP16, {OPTIMIZER: {"hysteresis": 7}}),
    ("precision.min_loss_scale=0.5", FP16, {OPTIMIZER: {"min_loss_scale": 0.5}}),
    ("precision.grad_reduce_in_fp32=false", BF16, {DDP: {"grad_reduce_in_fp32": False}}),
    (
        "precision.grad_reduce_in_fp32=true",
        (*zero(2), "precision={dtype: bf16, grad_reduce_in_fp32: false}"),
        {DEEPSPEED: {"communication_data_type": "fp32"}},
    ),
    ("parallel.tensor_model_parallel_size=2", (), {MODEL: {"tensor_model_parallel_size": 2}}),
    ("parallel.context_parallel_size=2", (), {MODEL: {"context_parallel_size": 2}}),
    ("parallel.pipeline_model_parallel_size=2", (), {MODEL: {"pipeline_model_parallel_size": 2}}),
    (
        "parallel.virtual_pipeline_model_parallel_size=2",
        STAGES,
        {MODEL: {"virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True}},
    ),
    (
        "parallel.overlap_p2p_comm=false",
        (*STAGES, "parallel.virtual_pipeline_model_parallel_size=2"),
        {MODEL: {"overlap_p2p_comm": False}},
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage=3",
        STAGES,
        {
            MODEL: {
                "pipeline_model_parallel_layout.input_data": [
                    ["embedding"] + 3 * ["decoder"],
                    5 * ["decoder"] + ["loss"],
                ]
            }
        },
    ),
    (
        "parallel.num_layers_in_last_pipeline_stage=3",
        STAGES,
        {
            MODEL: {
                "pipeline_model_parallel_layout.input_data": [
                    ["embedding"] + 5 * ["decoder"],
                    3 * ["decoder"] + ["loss"],
                ]
            }
        },
    ),
    (
        "parallel.pipeline_layers=[2, 6]",
        STAGES,
        {
            MODEL: {
                "pipeline_model_parallel_layout.input_data": [
                    ["embedding"] + 2 * ["decoder"],
                    6 * ["decoder"] + ["loss"],
                ]
            }
        },
    ),
    (
        "parallel.sequence_parallel=true",
        ("parallel.tensor_model_parallel_size=2",),
        {MODEL: {"sequence_parallel": True}},
    ),
    (
        "parallel.use_distributed_optimizer=true",
        (),
        {DDP: {"use_distributed_optimizer": True}, OPTIMIZER: {"use_distributed_optimizer": True}},
    ),
    ("parallel.overlap_grad_reduce=true", (), {DDP: {"overlap_grad_reduce": True}}),
    ("parallel.ddp_bucket_size=12345", ("parallel.overlap_grad_reduce=true",), {DDP: {"bucket_size": 12345}}),
    (
        "parallel.overlap_param_gather=true",
        (*SHARDED, "parallel.overlap_grad_reduce=true"),
        {DDP: {"overlap_param_gather": True}, OPTIMIZER: {"overlap_param_gather": True}},
    ),
    ("model.num_experts=8", EXPERTS[1:], {MODEL: {"num_moe_experts": 8}}),
    ("model.moe_ffn_hidden_size=96", EXPERTS, {MODEL: {"moe_ffn_hidden_size": 96}}),
    ("model.first_k_dense_replace=1", EXPERTS, {MODEL: {"moe_layer_freq": [0, 1, 1, 1]}}),
    ("model.moe_layer_freq=3", EXPERTS, {MODEL: {"moe_layer_freq": [1, 0, 0, 1]}}),
    ("parallel.expert_model_parallel_size=2", EXPERTS, {MODEL: {"expert_model_parallel_size": 2}}),
    (
        "parallel.expert_tensor_parallel_size=1",
        (*EXPERTS, "parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"),
        {MODEL: {"expert_tensor_parallel_size": 1}},
    ),
    ("recompute.granularity=selective", (), {MODEL: {"recompute_granularity": "selective"}}),
    ("recompute.method=block", (*FULL, "recompute.num_layers=2"), {MODEL: {"recompute_method": "block"}}),
    ("recompute.num_layers=2", FULL, {MODEL: {"recompute_num_layers": 2}}),
    (
        "recompute.distribute_saved_activations=true",
        (*FULL, "parallel.tensor_model_parallel_size=2"),
        {MODEL: {"distribute_saved_activations": True}},
    ),
    ("logging.log_num_zeros_in_grad=true", (), {OPTIMIZER: {"log_num_zeros_in_grad": True}}),
    ("engine.zero.stage=2", ("engine.name=deepspeed",), {DEEPSPEED: {"zero_optimization.stage": 2}}),
    *(
        (f"engine.zero.{name}={value}", overrides, {DEEPSPEED: {f"zero_optimization.{name}": value}})
        for name, value, overrides in (
            ("contiguous_gradients", False, zero(2)),
            ("reduce_scatter", False, zero(2)),
            ("reduce_bucket_size", 12345, zero(2)),
            ("allgather_bucket_size", 12346, zero(2)),
            ("overlap_comm", True, zero(2)),
            ("round_robin_gradients", True, zero(2)),
            ("sub_group_size", 12345, zero(3)),
            ("stage3_prefetch_bucket_size", 12345, zero(3)),
            ("stage3_param_persistence_threshold", 12345, zero(3)),
            ("stage3_model_persistence_threshold", 12345, zero(3)),
            ("stage3_max_live_parameters", 12345, zero(3)),
            ("stage3_max_reuse_distance", 12345, zero(3)),
            ("offload_optimizer.device", "cpu", zero(2, *BF16)),
            ("offload_optimizer.nvme_path", "/elsewhere", SWAPPED),
            ("offload_optimizer.pin_memory", False, OFFLOADED),
            ("offload_optimizer.buffer_count", 7, SWAPPED),
            ("offload_optimizer.fast_init", True, (*PARAMS_SWAPPED, *SWAPPED)),
            ("offload_optimizer.pipeline_read", True, MANY_BUFFERS),
            ("offload_optimizer.pipeline_write", True, MANY_BUFFERS),
            ("offload_param.device", "cpu", zero(3, *BF16)),
            ("offload_param.nvme_path", "/elsewhere", PARAMS_SWAPPED),
            ("offload_param.pin_memory", False, PARAMS),
            ("offload_param.buffer_count", 7, PARAMS_SWAPPED),
            ("offload_param.buffer_size", 12345678, PARAMS_SWAPPED),
            ("offload_param.max_in_cpu", 12345, PARAMS_SWAPPED),
        )
    ),
]

ELSEWHERE = {
    "the shapes that pretrain.model builds with": (
        "model.seq_length",
        "model.max_position_embeddings",
        "model.position_embedding_type",
        "model.parallel_residual",
        "model.untie_embeddings_and_output_weights",
        "model.embedding_layernorm",
        "model.qk_layernorm",
        "model.make_vocab_size_divisible_by",
    ),
    "pretrain.engine.optimizers.muon": (
        "optimizer.muon_momentum",
        "optimizer.muon_use_nesterov",
        "optimizer.muon_num_ns_steps",
        "optimizer.muon_scale_mode",
        "optimizer.muon_extra_scale_factor",
    ),
    "installed optimizers, such as that of docs/writing-an-optimizer.md": ("optimizer.options",),
    "pretrain.model.rope": (
        "model.rotary_percent",
        "model.rotary_base",
        "model.use_rope_scaling",
        "model.rope_scaling_type",
        "model.rope_scaling_factor",
        "model.rope_low_freq_factor",
        "model.rope_high_freq_factor",
        "model.original_max_position_embeddings",
        "model.yarn_beta_fast",
        "model.yarn_beta_slow",
        "model.yarn_attention_factor",
        "model.yarn_correction_range_round_to_int",
    ),
    "pretrain.model.experts": ("model.moe_shared_expert_intermediate_size",),
    "pretrain.model.router": (
        "model.moe_expert_capacity_factor",
        "model.moe_token_drop_policy",
        "model.moe_router_load_balancing_type",
        "model.moe_aux_loss_coeff",
        "model.moe_z_loss_coeff",
    ),
    "pretrain.engine.experts": ("model.moe_router_bias_update_rate",),
    "pretrain.model.requests, of linears": ("precision.fp8", "precision.fp8_wgrad"),
    "pretrain.model.requests, of the router": (
        "model.moe_router_topk",
        "model.moe_router_score_function",
        "model.moe_router_pre_softmax",
        "model.moe_router_num_groups",
        "model.moe_router_group_topk",
        "model.moe_router_topk_scaling_factor",
        "model.moe_router_enable_expert_bias",
    ),
    "pretrain.model.weights": ("model.init_method", "model.init_method_std", "model.output_layer_init_method"),
    "pretrain.data": ("tokenizer.*", "data.*"),
    "pretrain.training": (
        "train.rampup_batch_size",
        "train.train_iters",
        "train.train_samples",
        "train.iterations_to_skip",
        "train.loss_spike.*",
        "train.check_replicas_interval",
        "train.seed",
        "train.manual_gc",
        "train.manual_gc_interval",
        "train.exit_interval",
        "train.exit_duration_in_mins",
        "train.kill_switch_path",
        "checkpoint.*",
        "evaluation.*",
        "profile.*",
    ),
    "pretrain.engine.schedule": (
        "schedule.lr_decay_style",
        "schedule.lr_warmup_iters",
        "schedule.lr_warmup_samples",
        "schedule.lr_warmup_fraction",
        "schedule.lr_decay_iters",
        "schedule.lr_decay_samples",
        "schedule.lr_wsd_decay_style",
        "schedule.lr_wsd_decay_iters",
        "schedule.lr_wsd_decay_samples",
        "schedule.override_opt_param_scheduler",
        "schedule.use_checkpoint_opt_param_scheduler",
    ),
    "pretrain.model.requests": ("model.window_size", "precision.fp16_lm_cross_entropy", "kernels.*"),
    "pretrain.engine.groups": ("parallel.distributed_timeout_minutes",),
    "pretrain.engine.deepspeed.host_adam": ("engine.zero.offload_optimizer.cpu_adam",),
    "pretrain.engine.build": ("engine.name", "engine.deepspeed_config"),
    "pretrain.report": (
        "logging.log_interval",
        "logging.logger*",
        "logging.wandb_*",
        "logging.mlflow_*",
        "logging.comet_*",
        "logging.tensorboard_queue_size",
        "logging.hang_after_seconds",
        "logging.log_timers",
        "logging.log_straggler",
        "logging.log_params_norm",
    ),
}


def settings(recipe):
    """Return every library's settings as the engines make them."""
    return {
        MODEL: transformer_config(recipe, PointToPoint(batched=True, overlapped=True)),
        DDP: data_parallel_config(recipe),
        OPTIMIZER: optimizer_config(recipe, optimizer_of(recipe.optimizer)),
        DEEPSPEED: deepspeed_config(recipe, 1),
        ADAM: optimizer_of(recipe.optimizer).arguments(recipe.optimizer),
    }


def found(library, path):
    for name in path.split("."):
        library = library[name] if isinstance(library, dict) else getattr(library, name)
    return library


@pytest.mark.parametrize(("override", "others", "expected"), ROWS, ids=[f"{row[0]} {row[2].keys()}" for row in ROWS])
def test_a_value_arrives(override, others, expected):
    given, without = settings(tiny(*others, override)), settings(tiny(*others))
    for library, values in expected.items():
        for path, value in values.items():
            assert found(given[library], path) == value
            assert missing(without[library], path) or found(without[library], path) != value, "this is the default"


def missing(library, path):
    try:
        found(library, path)
    except (AttributeError, KeyError):
        return True
    return False


def test_every_key_has_a_row_or_a_reader():
    with_keys = {path for path, field in walk(Recipe) if inner_section(field) is not None}
    keys = set(keys_of_recipe()) - with_keys
    in_rows = {override.partition("=")[0] for override, _, _ in ROWS}
    names = [name for reader in ELSEWHERE.values() for name in reader]
    read = {key for key in keys for name in names if key == name or (name.endswith("*") and key.startswith(name[:-1]))}
    assert in_rows | read == keys
    assert not in_rows & read
