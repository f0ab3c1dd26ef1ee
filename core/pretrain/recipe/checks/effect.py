"""All checks of a recipe, and keys without effect: setting one is an error, because its author expects an effect.

Which of DeepSpeed's ZeRO stages reads what was looked up in deepspeed 0.19.8: runtime/engine.py
(`_configure_zero_optimizer`, `_configure_bf16_optimizer`), zero/stage_1_and_2.py and zero/stage3.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.deepspeed import deepspeed_problems
from pretrain.recipe.checks.experts import expert_problems
from pretrain.recipe.checks.fp8 import fp8_problems
from pretrain.recipe.checks.installed import logger_problems
from pretrain.recipe.checks.rule import Rule, only
from pretrain.recipe.checks.training import (
    batch_problems,
    compilation_problems,
    context_problems,
    data_problems,
    model_problems,
    optimizer_problems,
    profile_problems,
    schedule_problems,
    stage_problems,
    tensor_problems,
    tokenizer_problems,
)
from pretrain.recipe.problem import Problem
from pretrain.recipe.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe
    from pretrain.recipe.sections.outputs import LoggerName


_ZERO = "engine.zero"
_OPTIMIZER = "engine.zero.offload_optimizer"
_PARAM = "engine.zero.offload_param"

_BF16_ALONE = (
    "engine.zero.stage 2 or 3, or stage 1 unless bf16 gradients are summed in fp32 (precision.grad_reduce_in_fp32), "
    "where DeepSpeed uses another optimizer"
)
_BF16_DECIDES = ("engine.zero.stage", "precision.dtype", "precision.grad_reduce_in_fp32", f"{_OPTIMIZER}.device")


def _buckets(recipe: Recipe) -> bool:
    """Say whether ZeRO's buckets are read; BF16_Optimizer reads none (DeepSpeedEngine._do_optimizer_sanity_check)."""
    zero, precision = recipe.engine.zero, recipe.precision
    fp32_gradients = precision.dtype == "bf16" and precision.grad_reduce_in_fp32
    return zero.stage > 1 or (zero.stage == 1 and not (fp32_gradients and zero.offload_optimizer.device != "cpu"))


ENGINE_RULES = (
    only("engine.name: deepspeed", _ZERO, "engine.deepspeed_config"),
    only(
        "engine.name: megatron",
        "parallel.use_distributed_optimizer",
        note=" (with deepspeed, engine.zero.stage: 1 does this)",
    ),
    only(
        "engine.name: megatron",
        "parallel.overlap_grad_reduce",
        note=" (with deepspeed, engine.zero.overlap_comm: true does this)",
    ),
    only(
        "parallel.overlap_grad_reduce and engine.name: megatron",
        "parallel.ddp_bucket_size",
        note=" (with deepspeed, engine.zero.reduce_bucket_size)",
    ),
    only(
        "engine.name: megatron",
        "parallel.overlap_param_gather",
        note=" (deepspeed gathers ahead by itself, at engine.zero.stage: 3)",
    ),
    only("engine.name: megatron", "logging.log_num_zeros_in_grad"),
    Rule(
        (
            f"{_ZERO}.contiguous_gradients",
            f"{_ZERO}.reduce_scatter",
            f"{_ZERO}.reduce_bucket_size",
            f"{_ZERO}.overlap_comm",
        ),
        _BF16_ALONE,
        _BF16_DECIDES,
        _buckets,
    ),
    Rule(
        (f"{_ZERO}.round_robin_gradients",),
        _BF16_ALONE.replace("2 or 3", "2"),
        _BF16_DECIDES,
        lambda r: _buckets(r) and r.engine.zero.stage < 3,
    ),
    only("engine.zero.stage: 1 or 2", f"{_ZERO}.allgather_bucket_size"),
    only(
        "engine.zero.stage: 3",
        f"{_ZERO}.sub_group_size",
        f"{_ZERO}.stage3_prefetch_bucket_size",
        f"{_ZERO}.stage3_param_persistence_threshold",
        f"{_ZERO}.stage3_model_persistence_threshold",
        f"{_ZERO}.stage3_max_live_parameters",
        f"{_ZERO}.stage3_max_reuse_distance",
        _PARAM,
    ),
    only("engine.zero.stage over 0", _OPTIMIZER),
    only(f"{_OPTIMIZER}.device: none", "kernels.optimizer", note=f" (on the host {_OPTIMIZER}.cpu_adam steps)"),
    only(f"{_OPTIMIZER}.device: cpu or nvme", f"{_OPTIMIZER}.pin_memory", f"{_OPTIMIZER}.cpu_adam"),
    only(
        f"{_OPTIMIZER}.device: nvme",
        *(f"{_OPTIMIZER}.{key}" for key in ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write")),
    ),
    only(f"{_OPTIMIZER}.device: nvme and {_PARAM}.device: nvme", f"{_OPTIMIZER}.fast_init"),
    only(f"{_PARAM}.device: cpu or nvme", f"{_PARAM}.pin_memory"),
    only(
        f"{_PARAM}.device: nvme",
        *(f"{_PARAM}.{key}" for key in ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu")),
    ),
)
"""Keys that only one engine reads, and at which of DeepSpeed's ZeRO stages."""


def _decays(recipe: Recipe) -> bool:
    return recipe.schedule.lr_decay_style != "constant"


def _of_logger(name: LoggerName, *keys: str) -> Rule:
    paths = tuple(f"logging.{key}" for key in keys)
    needs, decided_by = f"{name} in logging.loggers", ("logging.loggers",)
    return Rule(paths, needs, decided_by, lambda recipe: name in recipe.logging.loggers)


OTHER_RULES = (
    only("data.index: megatron", "data.cache_path"),
    Rule(
        ("data.split", "data.split_by"),
        "data.path or data.blend, which they divide",
        ("data.train_data_path", "data.valid_data_path", "data.test_data_path"),
        lambda r: r.data.own_files is None,
    ),
    only("model.position_embedding_type: learned_absolute", "data.reset_position_ids"),
    only(
        "model.position_embedding_type: rope",
        "model.rotary_percent",
        "model.rotary_base",
        "model.use_rope_scaling",
        "kernels.rotary",
    ),
    only("model.use_rope_scaling: true", "model.rope_scaling_type", "model.rope_scaling_factor"),
    only(
        "model.use_rope_scaling: true and model.rope_scaling_type: llama3",
        "model.rope_low_freq_factor",
        "model.rope_high_freq_factor",
    ),
    only(
        "model.use_rope_scaling: true and model.rope_scaling_type: llama3 or dynamic or yarn",
        "model.original_max_position_embeddings",
    ),
    only(
        "model.use_rope_scaling: true and model.rope_scaling_type: yarn",
        "model.yarn_beta_fast",
        "model.yarn_beta_slow",
        "model.yarn_attention_factor",
        "model.yarn_correction_range_round_to_int",
    ),
    only("model.qk_layernorm: true", "kernels.norm@head"),
    Rule(
        ("optimizer.options",),
        "an optimizer.name that another distribution has installed",
        ("optimizer.name",),
        lambda r: r.optimizer.own is None,
    ),
    only("optimizer.name: adam or adamw", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"),
    only(
        "optimizer.name: muon",
        "optimizer.muon_momentum",
        "optimizer.muon_use_nesterov",
        "optimizer.muon_num_ns_steps",
        "optimizer.muon_scale_mode",
        "optimizer.muon_extra_scale_factor",
    ),
    only(
        "data.reset_attention_mask: false and parallel.context_parallel_size: 1",
        "kernels.softmax",
        note=" (sizes of documents and pieces change from call to call: plain torch computes it)",
    ),
    only(
        "model.num_experts",
        "model.moe_ffn_hidden_size",
        "model.first_k_dense_replace",
        "model.moe_layer_freq",
        "model.moe_shared_expert_intermediate_size",
        "model.moe_router_topk",
        "model.moe_router_score_function",
        "model.moe_router_num_groups",
        "model.moe_router_topk_scaling_factor",
        "model.moe_expert_capacity_factor",
        "model.moe_router_load_balancing_type",
        "model.moe_z_loss_coeff",
        "parallel.expert_model_parallel_size",
    ),
    only(
        "model.num_experts",
        "kernels.grouped_linear",
        "kernels.moe_permute",
        "kernels.router",
        "kernels.activation@expert",
        "kernels.linear@router",
    ),
    only("model.moe_shared_expert_intermediate_size", "kernels.activation@shared"),
    only("model.num_experts and model.moe_router_score_function: softmax", "model.moe_router_pre_softmax"),
    only("model.num_experts and model.moe_router_num_groups", "model.moe_router_group_topk"),
    only("model.num_experts and model.moe_router_score_function: sigmoid", "model.moe_router_enable_expert_bias"),
    only("model.num_experts and model.moe_expert_capacity_factor", "model.moe_token_drop_policy"),
    only("model.moe_router_enable_expert_bias", "model.moe_router_bias_update_rate"),
    only("model.moe_router_load_balancing_type: aux_loss or seq_aux_loss", "model.moe_aux_loss_coeff"),
    only(
        "model.num_experts and parallel.tensor_model_parallel_size over 1",
        "parallel.expert_tensor_parallel_size",
    ),
    only("model.add_bias_linear: false", "model.add_qkv_bias", note=" (true gives all linear layers a bias)"),
    Rule(
        ("model.init_method_std",),
        "model.init_method: normal, or output_layer_init_method normal or scaled_normal",
        ("model.init_method", "model.output_layer_init_method"),
        lambda r: r.model.init_method == "normal" or "normal" in r.model.output_layer_init_method,
    ),
    only("tokenizer.type: gpt2", "tokenizer.vocab_file", "tokenizer.merge_file"),
    only("tokenizer.type: huggingface", "tokenizer.file"),
    only(
        "tokenizer.type: huggingface and data.corpus",
        "tokenizer.vocab_size",
        note=", on which such a tokenizer is trained",
    ),
    only("precision.fp8", "precision.fp8_wgrad"),
    only("precision.dtype: fp16", "precision.loss_scale", "precision.fp16_lm_cross_entropy"),
    only(
        "precision.dtype: bf16 or fp16",
        "precision.grad_reduce_in_fp32",
        note=" (fp32 gradients are reduced in fp32 anyway)",
    ),
    Rule(
        (
            "precision.initial_loss_scale",
            "precision.loss_scale_window",
            "precision.hysteresis",
            "precision.min_loss_scale",
        ),
        "precision.dtype: fp16 with a dynamic loss scale (no precision.loss_scale)",
        ("precision.dtype", "precision.loss_scale"),
        lambda r: r.precision.dtype == "fp16" and r.precision.loss_scale is None,
    ),
    only("train.loss_spike.threshold", "train.loss_spike.action"),
    only("train.loss_spike.threshold and train.loss_spike.action: rollback", "train.loss_spike.leave_out"),
    Rule(
        ("train.check_replicas_interval",),
        "engine.zero.stage below 3: ZeRO-3 holds one copy of the weights over all ranks",
        ("engine.name", "engine.zero.stage"),
        lambda r: r.engine.name != "deepspeed" or r.engine.zero.stage < 3,
    ),
    only(
        "parallel.pipeline_model_parallel_size over 1 and parallel.virtual_pipeline_model_parallel_size over 1",
        "parallel.overlap_p2p_comm",
    ),
    only(
        "parallel.pipeline_model_parallel_size over 1",
        "parallel.virtual_pipeline_model_parallel_size",
        "parallel.num_layers_in_first_pipeline_stage",
        "parallel.num_layers_in_last_pipeline_stage",
        "parallel.pipeline_layers",
    ),
    only("parallel.tensor_model_parallel_size over 1", "parallel.sequence_parallel"),
    only("parallel.use_distributed_optimizer and parallel.overlap_grad_reduce", "parallel.overlap_param_gather"),
    only("recompute.granularity: full", "recompute.method", "recompute.num_layers"),
    only(
        "recompute.granularity: full and parallel.tensor_model_parallel_size over 1 and "
        "parallel.sequence_parallel: false",
        "recompute.distribute_saved_activations",
    ),
    Rule(
        ("schedule.decoupled_min_lr",),
        "optimizer.decoupled_lr, and a schedule.lr_decay_style other than constant",
        ("optimizer.decoupled_lr", "schedule.lr_decay_style"),
        lambda r: r.optimizer.decoupled_lr is not None and _decays(r),
    ),
    Rule(("schedule.min_lr",), "a schedule.lr_decay_style other than constant", ("schedule.lr_decay_style",), _decays),
    Rule(
        ("schedule.lr_decay_iters", "schedule.lr_decay_samples"),
        "a schedule.lr_decay_style other than constant, or schedule.lr_warmup_fraction, which is a fraction of it",
        ("schedule.lr_decay_style", "schedule.lr_warmup_fraction"),
        lambda r: _decays(r) or r.schedule.lr_warmup_fraction is not None,
    ),
    only(
        "schedule.lr_decay_style: WSD",
        "schedule.lr_wsd_decay_style",
        "schedule.lr_wsd_decay_iters",
        "schedule.lr_wsd_decay_samples",
    ),
    Rule(
        ("kernels.triangle_block_size",),
        "kernels.attention: triangle",
        ("kernels.attention",),
        # Any other name may be that of a plugin's own triangle kernel.
        lambda r: r.kernels.attention not in {"auto", "flash", "softmax"},
    ),
    only("checkpoint.save", "checkpoint.save_interval", "checkpoint.keep", "checkpoint.local_interval"),
    only("checkpoint.local_interval over 0", "checkpoint.local_dir"),
    only("train.manual_gc: true", "train.manual_gc_interval"),
    only("checkpoint.save and checkpoint.save_interval over 0", "checkpoint.async_save"),
    only("checkpoint.load", "checkpoint.finetune"),
    only("evaluation.interval over 0", "evaluation.iters", "evaluation.target_loss"),
    only("evaluation.prompt", "evaluation.prompt_tokens"),
    only(
        "evaluation.tasks",
        "evaluation.tasks_interval",
        "evaluation.tasks_include_path",
        "evaluation.tasks_num_fewshot",
        "evaluation.tasks_limit",
    ),
    only("profile.steps over 0", "profile.start"),
    _of_logger("tensorboard", "tensorboard_queue_size"),
    _of_logger("wandb", "wandb_project", "wandb_entity", "wandb_exp_name", "wandb_group"),
    _of_logger("mlflow", "mlflow_tracking_uri", "mlflow_experiment", "mlflow_run_name"),
    _of_logger("comet", "comet_project", "comet_workspace", "comet_experiment_name", "comet_tags"),
    Rule(
        ("logging.logger_options",),
        "a logger in logging.loggers that another distribution has installed",
        ("logging.loggers",),
        lambda r: bool(r.logging.of_others),
    ),
)

RULES = ENGINE_RULES + OTHER_RULES

_OFF = {False, "auto", "none"}


def problems_of(recipe: Recipe) -> list[Problem]:
    """Return the problems of all checks, the most basic first."""
    checks = (
        model_problems,
        tensor_problems,
        context_problems,
        stage_problems,
        expert_problems,
        fp8_problems,
        tokenizer_problems,
        data_problems,
        batch_problems,
        optimizer_problems,
        schedule_problems,
        deepspeed_problems,
        compilation_problems,
        profile_problems,
        logger_problems,
        effect_problems,
    )
    return [problem for check in checks for problem in check(recipe)]


def without_effect(recipe: Recipe) -> list[str]:
    """Return the keys that do nothing in this recipe, given or not, as "section.key"."""
    return [path for path, _ in _idle(recipe)]


def effect_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield the keys that are given without effect. A value that means off (false, 0, auto, none) is allowed."""
    idle = _idle(recipe)
    paths = {path for path, _ in idle}
    for path, rule in idle:
        *sections, key = path.split(".")
        around = {".".join(sections[:depth]) for depth in range(1, len(sections) + 1)}
        if paths.isdisjoint(around) and not _is_off(_given(recipe, sections, key)):
            yield Problem(path, f"no effect here; it needs {rule.needs}.", rule.decided_by)


def _idle(recipe: Recipe) -> list[tuple[str, Rule]]:
    return [(path, rule) for rule in RULES if not rule.holds(recipe) for path in rule.keys]


def _given(recipe: Recipe, sections: list[str], key: str) -> Any:
    """Return the value of a key, None if it was not given."""
    section: Section = recipe
    for name in sections:
        section = getattr(section, name)
    return getattr(section, key) if key in section.model_fields_set else None


def _is_off(value: Any) -> bool:
    if isinstance(value, Section):
        return all(_is_off(getattr(value, key)) for key in value.model_fields_set)
    return value is None or (not isinstance(value, dict) and value in _OFF)
