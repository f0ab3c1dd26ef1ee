"""Functions of GPT-NeoX's dialect by key of the recipe; a key that is not here one setting alone gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values import checkpoint_folders
from pretrain.tools.migrate.values.neox import batches, layout, learning_rate, precision, running, shape, text, zero

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.values.worked import Function

FUNCTIONS: Mapping[str, Function] = {
    "model.activation": shape.activation,
    "model.add_bias_linear": shape.add_bias_linear,
    "model.attention_softmax_in_fp32": shape.attention_softmax_in_fp32,
    "model.ffn_hidden_size": shape.ffn_hidden_size,
    "model.init_method": shape.init_method,
    "model.layernorm_epsilon": shape.layernorm_epsilon,
    "model.normalization": shape.normalization,
    "model.output_layer_init_method": shape.output_layer_init_method,
    "model.position_embedding_type": shape.position_embedding_type,
    "model.rotary_base": shape.rotary_base,
    "model.rotary_percent": shape.rotary_percent,
    "kernels.attention": shape.attention,
    "tokenizer.type": text.tokenizer_type,
    "tokenizer.vocab_file": text.vocab_file,
    "tokenizer.merge_file": text.merge_file,
    "tokenizer.file": text.tokenizer_file,
    "data.path": text.data_path,
    "data.blend": text.blend,
    "data.split": text.split,
    "train.micro_batch_size": batches.micro_batch_size,
    "train.global_batch_size": batches.global_batch_size,
    "optimizer.name": learning_rate.optimizer_name,
    "optimizer.lr": learning_rate.lr,
    "optimizer.adam_beta1": learning_rate.adam_beta1,
    "optimizer.adam_beta2": learning_rate.adam_beta2,
    "optimizer.adam_eps": learning_rate.adam_eps,
    "optimizer.weight_decay": learning_rate.weight_decay,
    "optimizer.clip_grad": learning_rate.clip_grad,
    "schedule.lr_decay_style": learning_rate.lr_decay_style,
    "schedule.lr_decay_iters": learning_rate.lr_decay_iters,
    "precision.dtype": precision.dtype,
    "precision.loss_scale": precision.loss_scale,
    "precision.initial_loss_scale": precision.initial_loss_scale,
    "precision.loss_scale_window": precision.loss_scale_window,
    "precision.hysteresis": precision.hysteresis,
    "precision.min_loss_scale": precision.min_loss_scale,
    "precision.grad_reduce_in_fp32": precision.grad_reduce_in_fp32,
    "parallel.tensor_model_parallel_size": layout.tensor_model_parallel_size,
    "parallel.pipeline_model_parallel_size": layout.pipeline_model_parallel_size,
    "parallel.pipeline_layers": layout.pipeline_layers,
    "parallel.sequence_parallel": layout.sequence_parallel,
    "parallel.use_distributed_optimizer": layout.use_distributed_optimizer,
    "parallel.overlap_grad_reduce": layout.overlap_grad_reduce,
    "parallel.ddp_bucket_size": layout.ddp_bucket_size,
    "recompute.granularity": layout.granularity,
    "recompute.method": layout.method,
    "recompute.num_layers": layout.num_layers,
    "recompute.distribute_saved_activations": layout.distribute_saved_activations,
    "checkpoint.save": checkpoint_folders.save,
    "checkpoint.load": running.load,
    "checkpoint.finetune": running.finetune,
    "checkpoint.save_interval": running.save_interval,
    "checkpoint.keep": running.keep,
    "evaluation.interval": running.evaluation_interval,
    "evaluation.iters": running.evaluation_iters,
    **zero.FUNCTIONS,
}
