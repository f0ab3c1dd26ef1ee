"""Rules for keys that have an effect only while other keys have certain values."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rule:
    """Keys that have an effect only while other keys have certain values.

    Attributes:
        keys: "section.key", or a whole inner section such as "engine.zero".
        needs: what the recipe must say for them to have an effect.
        decided_by: the keys that `holds` looks at.
        holds: whether the keys have an effect.
    """

    keys: tuple[str, ...]
    needs: str
    decided_by: tuple[str, ...]
    holds: Callable[[Recipe], bool]


def only(condition: str, *keys: str, note: str = "") -> Rule:
    """Return the rule of keys that have an effect while one other key has a value.

    Args:
        condition: "section.key: value".
        keys: that depend on it.
        note: is added to what they need.
    """
    path, _, value = condition.partition(": ")
    wanted = int(value) if value.isdecimal() else {"true": True}.get(value, value)

    def holds(recipe: Recipe) -> bool:
        return bool(attrgetter(path)(recipe) == wanted)

    return Rule(keys, condition + note, (path,), holds)


def _decays(recipe: Recipe) -> bool:
    return recipe.schedule.lr_decay_style != "constant"


RULES = (
    only("data.index: megatron", "data.cache_path"),
    only("model.position_embedding_type: learned_absolute", "data.reset_position_ids"),
    only(
        "model.position_embedding_type: rope",
        "model.rotary_percent",
        "model.rotary_base",
        "model.use_rope_scaling",
        "kernels.rotary",
    ),
    only(
        "model.use_rope_scaling: true",
        "model.rope_scaling_factor",
        "model.rope_low_freq_factor",
        "model.rope_high_freq_factor",
        "model.original_max_position_embeddings",
    ),
    Rule(
        ("model.add_qkv_bias",),
        "model.add_bias_linear: false (true gives all linear layers a bias)",
        ("model.add_bias_linear",),
        lambda r: not r.model.add_bias_linear,
    ),
    Rule(
        ("model.init_method_std",),
        "model.init_method: normal, or output_layer_init_method normal or scaled_normal",
        ("model.init_method", "model.output_layer_init_method"),
        lambda r: r.model.init_method == "normal" or "normal" in r.model.output_layer_init_method,
    ),
    only("tokenizer.type: gpt2", "tokenizer.vocab_file", "tokenizer.merge_file"),
    only("tokenizer.type: huggingface", "tokenizer.file"),
    Rule(
        ("tokenizer.vocab_size",),
        "tokenizer.type: huggingface and data.corpus, on which such a tokenizer is trained",
        ("tokenizer.type", "data.corpus"),
        lambda r: r.tokenizer.type == "huggingface" and r.data.corpus is not None,
    ),
    only("precision.dtype: fp16", "precision.loss_scale", "precision.fp16_lm_cross_entropy"),
    Rule(
        ("precision.grad_reduce_in_fp32",),
        "precision.dtype: bf16 or fp16 (fp32 gradients are reduced in fp32 anyway)",
        ("precision.dtype",),
        lambda r: r.precision.dtype != "fp32",
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
    Rule(
        ("train.loss_spike.action",),
        "train.loss_spike.threshold",
        ("train.loss_spike.threshold",),
        lambda r: r.train.loss_spike.threshold is not None,
    ),
    Rule(
        ("train.loss_spike.leave_out",),
        "train.loss_spike.threshold and action: rollback",
        ("train.loss_spike.threshold", "train.loss_spike.action"),
        lambda r: r.train.loss_spike.threshold is not None and r.train.loss_spike.action == "rollback",
    ),
    Rule(
        ("train.check_replicas_interval",),
        "engine.zero.stage below 3: ZeRO-3 holds one copy of the weights over all ranks",
        ("engine.name", "engine.zero.stage"),
        lambda r: r.engine.name != "deepspeed" or r.engine.zero.stage < 3,
    ),
    Rule(
        ("parallel.overlap_p2p_comm",),
        "parallel.pipeline_model_parallel_size and virtual_pipeline_model_parallel_size over 1",
        ("parallel.pipeline_model_parallel_size", "parallel.virtual_pipeline_model_parallel_size"),
        lambda r: (
            r.parallel.pipeline_model_parallel_size > 1 and r.parallel.virtual_pipeline_model_parallel_size is not None
        ),
    ),
    Rule(
        (
            "parallel.virtual_pipeline_model_parallel_size",
            "parallel.num_layers_in_first_pipeline_stage",
            "parallel.num_layers_in_last_pipeline_stage",
            "parallel.pipeline_layers",
        ),
        "parallel.pipeline_model_parallel_size over 1",
        ("parallel.pipeline_model_parallel_size",),
        lambda r: r.parallel.pipeline_model_parallel_size > 1,
    ),
    Rule(
        ("parallel.sequence_parallel",),
        "parallel.tensor_model_parallel_size over 1",
        ("parallel.tensor_model_parallel_size",),
        lambda r: r.parallel.tensor_model_parallel_size > 1,
    ),
    Rule(
        ("parallel.overlap_param_gather",),
        "parallel.use_distributed_optimizer and parallel.overlap_grad_reduce",
        ("parallel.use_distributed_optimizer", "parallel.overlap_grad_reduce"),
        lambda r: r.parallel.use_distributed_optimizer and r.parallel.overlap_grad_reduce,
    ),
    only("recompute.granularity: full", "recompute.method", "recompute.num_layers"),
    Rule(
        ("recompute.distribute_saved_activations",),
        "recompute.granularity: full, parallel.tensor_model_parallel_size over 1 and no parallel.sequence_parallel",
        ("recompute.granularity", "parallel.tensor_model_parallel_size", "parallel.sequence_parallel"),
        lambda r: (
            r.recompute.granularity == "full"
            and r.parallel.tensor_model_parallel_size > 1
            and not r.parallel.sequence_parallel
        ),
    ),
    Rule(
        ("schedule.min_lr",),
        "a schedule.lr_decay_style other than constant",
        ("schedule.lr_decay_style",),
        _decays,
    ),
    Rule(
        ("schedule.lr_decay_iters", "schedule.lr_decay_samples"),
        "a schedule.lr_decay_style other than constant, or schedule.lr_warmup_fraction, which is a part of it",
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
    Rule(
        ("checkpoint.save_interval", "checkpoint.keep"),
        "checkpoint.save",
        ("checkpoint.save",),
        lambda r: r.checkpoint.save is not False,
    ),
    only("train.manual_gc: true", "train.manual_gc_interval"),
    Rule(
        ("checkpoint.async_save",),
        "checkpoint.save and a checkpoint.save_interval over 0",
        ("checkpoint.save", "checkpoint.save_interval"),
        lambda r: r.checkpoint.save is not False and r.checkpoint.save_interval > 0,
    ),
    Rule(
        ("checkpoint.finetune",),
        "checkpoint.load",
        ("checkpoint.load",),
        lambda r: r.checkpoint.load is not None,
    ),
    Rule(
        ("evaluation.iters", "evaluation.target_loss"),
        "an evaluation.interval over 0",
        ("evaluation.interval",),
        lambda r: r.evaluation.interval > 0,
    ),
    Rule(
        ("evaluation.prompt_tokens",),
        "evaluation.prompt",
        ("evaluation.prompt",),
        lambda r: r.evaluation.prompt is not None,
    ),
    only("logging.tensorboard: true", "logging.tensorboard_queue_size"),
)
