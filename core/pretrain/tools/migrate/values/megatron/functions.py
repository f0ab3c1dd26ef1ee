"""Functions by the key that they work out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values import checkpoint_folders
from pretrain.tools.migrate.values.megatron import (
    batches,
    engines,
    layout,
    learning_rate,
    precision,
    running,
    shape,
    stage_layers,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.values.worked import Function

FUNCTIONS: Mapping[str, Function] = {
    "model.activation": shape.activation,
    "model.ffn_hidden_size": shape.ffn_hidden_size,
    "model.normalization": shape.normalization,
    "model.position_embedding_type": shape.position_embedding_type,
    "model.num_query_groups": shape.num_query_groups,
    "model.apply_query_key_layer_scaling": shape.apply_query_key_layer_scaling,
    "model.attention_softmax_in_fp32": shape.attention_softmax_in_fp32,
    "model.make_vocab_size_divisible_by": shape.make_vocab_size_divisible_by,
    "tokenizer.type": text.tokenizer_type,
    "tokenizer.vocab_file": text.vocab_file,
    "tokenizer.merge_file": text.merge_file,
    "tokenizer.file": text.tokenizer_file,
    "data.path": text.data_path,
    "data.blend": text.blend,
    "data.split": text.split,
    "train.micro_batch_size": batches.micro_batch_size,
    "train.global_batch_size": batches.global_batch_size,
    "data.reset_position_ids": text.reset_position_ids,
    "data.reset_attention_mask": running.reset_attention_mask,
    "train.manual_gc_interval": running.manual_gc_interval,
    "train.rampup_batch_size": batches.rampup_batch_size,
    "train.iterations_to_skip": batches.iterations_to_skip,
    "train.train_iters": batches.train_iters,
    "train.train_samples": batches.train_samples,
    "optimizer.name": learning_rate.optimizer_name,
    "optimizer.weight_decay": learning_rate.weight_decay,
    "schedule.lr_decay_style": learning_rate.lr_decay_style,
    "schedule.lr_warmup_fraction": learning_rate.lr_warmup_fraction,
    "schedule.lr_warmup_iters": learning_rate.lr_warmup_iters,
    "schedule.lr_warmup_samples": learning_rate.lr_warmup_samples,
    "schedule.lr_decay_iters": learning_rate.lr_decay_iters,
    "schedule.lr_decay_samples": learning_rate.lr_decay_samples,
    "precision.dtype": precision.dtype,
    "precision.loss_scale": precision.loss_scale,
    "precision.initial_loss_scale": precision.initial_loss_scale,
    "precision.loss_scale_window": precision.loss_scale_window,
    "precision.hysteresis": precision.hysteresis,
    "precision.min_loss_scale": precision.min_loss_scale,
    "precision.grad_reduce_in_fp32": precision.grad_reduce_in_fp32,
    "parallel.tensor_model_parallel_size": layout.tensor_model_parallel_size,
    "parallel.virtual_pipeline_model_parallel_size": layout.virtual_pipeline_model_parallel_size,
    "parallel.pipeline_layers": stage_layers.pipeline_layers,
    "parallel.sequence_parallel": layout.sequence_parallel,
    "parallel.overlap_p2p_comm": layout.overlap_p2p_comm,
    "parallel.use_distributed_optimizer": engines.use_distributed_optimizer,
    "recompute.granularity": layout.granularity,
    "recompute.method": layout.method,
    "recompute.num_layers": layout.num_layers,
    "recompute.distribute_saved_activations": layout.distribute_saved_activations,
    "engine.name": engines.engine_name,
    "engine.deepspeed_config": engines.not_by_flag,
    "engine.zero.stage": engines.not_by_flag,
    "engine.zero.offload_param.device": engines.offload_param_device,
    "engine.zero.offload_optimizer.cpu_adam": engines.cpu_adam,
    "kernels.attention": engines.attention,
    "engine.zero.offload_optimizer.device": engines.offload_device,
    "checkpoint.save": checkpoint_folders.save,
    "checkpoint.load": running.load,
    "checkpoint.save_interval": running.save_interval,
    "checkpoint.finetune": running.finetune,
    "evaluation.interval": running.evaluation_interval,
    "evaluation.iters": running.evaluation_iters,
    "logging.log_timers": running.log_timers,
}

READ_BY_FUNCTIONS = frozenset(
    (
        "context_parallel_size",
        "ds_sequence_parallel_size",
        "masked_softmax_fusion",
        "scaled_masked_softmax_fusion",
        "transformer_impl",
        "use_legacy_models",
        "use_mcore_models",
        "weight_decay_incr_style",
    )
)
"""Settings that the functions read beside those whose meaning is a key."""
