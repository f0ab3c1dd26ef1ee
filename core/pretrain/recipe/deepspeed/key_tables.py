"""Tables of DeepSpeed's keys: those with an equivalent in a recipe, those of one fixed value, those refused."""

from __future__ import annotations

import typing
from typing import Any

from pretrain.recipe.recipe import Recipe, inner_section, walk
from pretrain.recipe.sections.engine import ZeroSection

_ZERO = "zero_optimization"
_OURS = f"{_ZERO}.offload_optimizer.cpu_adam"

_WITHOUT_PREFIX = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)
"""DeepSpeed takes these with and without stage3_ (populate_by_name in config_utils.py)."""

SAME = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_clipping": "optimizer.clip_grad",
    "fp16.loss_scale_window": "precision.loss_scale_window",
    "fp16.hysteresis": "precision.hysteresis",
    "fp16.min_loss_scale": "precision.min_loss_scale",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.eps": "optimizer.adam_eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "activation_checkpointing.partition_activations": "recompute.distribute_saved_activations",
    **{
        path: path.replace(_ZERO, "engine.zero", 1)
        for path, field in walk(ZeroSection, f"{_ZERO}.")
        if inner_section(field) is None and path != _OURS
    },
    **{f"{_ZERO}.{key}": f"engine.zero.stage3_{key}" for key in _WITHOUT_PREFIX},
}
"""Key of the recipe by key of DeepSpeed."""


def _holds_int(annotation: Any) -> bool:
    return annotation is int or any(_holds_int(option) for option in typing.get_args(annotation))


_WHOLE = {path for path, field in walk(Recipe) if _holds_int(field.annotation)}

WHOLE = {json_path for json_path, path in SAME.items() if path in _WHOLE}
"""Keys of DeepSpeed that are whole numbers; people write 2e8."""


SETTLED: dict[str, Any] = {
    "wall_clock_breakdown": False,
    "memory_breakdown": False,
    "dump_state": False,
    "disable_python_gc": False,
    "disable_allgather": False,
    "dataloader_drop_last": False,
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "gradient_allreduce_op": "mean",
    "managed_gradient_accumulation": True,
    "use_data_before_expert_parallelism": False,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": True,
    "fp16.auto_cast": False,
    "fp16.consecutive_hysteresis": False,
    "fp16.fp16_master_weights_and_grads": False,
    "bf16.immediate_grad_update": False,
    "bf16.check_grad_overflow": True,
    "bf16.bf16_master_weights_and_grads": False,
    "bf16.bf16_optimizer_states": False,
    "optimizer.legacy_fusion": False,
    "optimizer.params.bias_correction": True,
    "optimizer.params.amsgrad": False,
    "optimizer.params.fp32_optimizer_states": True,
    "optimizer.params.set_grad_none": True,
    "activation_checkpointing.contiguous_memory_optimization": False,
    "activation_checkpointing.cpu_checkpointing": False,
    "activation_checkpointing.synchronize_checkpoint_boundary": False,
    "activation_checkpointing.profile": False,
    f"{_ZERO}.use_multi_rank_bucket_allreduce": True,
    f"{_ZERO}.compute_grad_norm": True,
    f"{_ZERO}.load_from_fp32_weights": True,
    f"{_ZERO}.elastic_checkpoint": False,
    f"{_ZERO}.ignore_unused_parameters": True,
    f"{_ZERO}.legacy_stage1": False,
    f"{_ZERO}.parameter_alignment": False,
    f"{_ZERO}.zero_hpz_partition_size": 1,
    f"{_ZERO}.zero_quantized_weights": False,
    f"{_ZERO}.zero_quantized_nontrainable_weights": False,
    f"{_ZERO}.zero_quantized_gradients": False,
    f"{_ZERO}.memory_efficient_linear": False,
    f"{_ZERO}.pipeline_loading_checkpoint": False,
    f"{_ZERO}.override_module_apply": True,
    f"{_ZERO}.log_trace_cache_warnings": False,
    f"{_ZERO}.enable_sanity_checks": False,
    f"{_ZERO}.save_muon_momentum_buffer_in_memory": False,
    f"{_ZERO}.stage3_module_granularity_threshold": 0,
    f"{_ZERO}.module_granularity_threshold": 0,
    f"{_ZERO}.stage3_use_all_reduce_for_fetch_params": False,
    f"{_ZERO}.use_all_reduce_for_fetch_params": False,
    f"{_ZERO}.stage3_allgather_sequential": False,
    f"{_ZERO}.allgather_sequential": False,
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": False,
    f"{_ZERO}.gather_16bit_weights_on_model_save": False,
    f"{_ZERO}.stage3_gather_fp16_weights_on_model_save": False,
    f"{_ZERO}.offload_optimizer.ratio": 1.0,
    f"{_ZERO}.offload_optimizer.super_offload": False,
}
"""Value by key that matches pretrain's fixed behaviour."""

_CHECKPOINTS = "checkpoints are complete at every stage, and read at any other"
_WEIGHTS_IN_FILE = "nothing here calls save_16bit_model, which reads it"

INSTEAD = {
    "wall_clock_breakdown": "logging.log_timers: true times the phases of a step",
    "memory_breakdown": "metrics.jsonl has memory_peak_bytes",
    "zero_force_ds_cpu_optimizer": "engine.zero.offload_optimizer.cpu_adam: torch chooses torch's Adam",
    "optimizer.params.max_grad_norm": "DeepSpeed refuses it; gradient_clipping is its key",
    f"{_ZERO}.elastic_checkpoint": _CHECKPOINTS,
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": _WEIGHTS_IN_FILE,
    f"{_ZERO}.gather_16bit_weights_on_model_save": _WEIGHTS_IN_FILE,
    f"{_ZERO}.stage3_gather_fp16_weights_on_model_save": _WEIGHTS_IN_FILE,
    f"{_ZERO}.memory_efficient_linear": "the linear kernel keeps no gathered weight either",
    f"{_ZERO}.offload_optimizer.ratio": "the part left on the device would have no schedule and no checkpoint",
    f"{_ZERO}.offload_optimizer.cpuadam_cores_perc": "it belongs to super_offload",
    f"{_ZERO}.offload_optimizer.cpu_adam": "it is a key of the recipe: engine.zero.offload_optimizer.cpu_adam",
}
"""Reason to refuse another value of a key, or its replacement."""

REFUSED = (
    "optimizer.params.max_grad_norm",
    f"{_ZERO}.offload_optimizer.cpuadam_cores_perc",
    f"{_ZERO}.offload_optimizer.cpu_adam",
    "activation_checkpointing.number_checkpoints",
    "log_level",
    "vocabulary_size",
    "seq_parallel_communication_data_type",
    "data_types.buffer_dtype",
    "data_types.keep_in_fp32_modules",
)
"""Keys that are refused with any value."""

UNREAD = (f"{_ZERO}.allgather_partitions",)
"""Keys that DeepSpeed accepts and never reads: nothing calls DeepSpeedEngine.zero_allgather_partitions."""

SWITCHED = {
    "tensorboard": "logging.loggers: [tensorboard] writes for TensorBoard",
    "csv_monitor": "metrics.jsonl has every number",
    "wandb": "logging.loggers: [wandb] logs there, with logging.wandb_project",
    "comet": "logging.loggers: [comet] logs there, with logging.comet_project",
    "flops_profiler": "metrics.jsonl has tflops_per_device",
    "comms_logger": "",
    "autotuning": "",
    "hybrid_engine": "",
    "torch_autocast": "precision.dtype sets the dtype of everything",
    "data_efficiency": "",
    "weight_quantization": "",
}
"""Objects that do nothing unless their `enabled` is true, and what there is instead."""

BLOCKS = {
    "scheduler": "section schedule of the recipe sets the learning rate",
    "aio": "files are read and written with DeepSpeed's defaults",
    "checkpoint": "section checkpoint of the recipe sets what is saved and loaded",
    "pipeline": "pipelines belong to engine.name: megatron",
    "tensor_parallel": "parallel.tensor_model_parallel_size splits layers",
    "sequence_parallel_size": "parallel.sequence_parallel: true splits sequences",
    "expert_parallel": "",
    "compile": "",
    "timers": "",
    "datastates": "",
    f"{_ZERO}.zenflow": "",
    f"{_ZERO}.leaf_module": "",
}
"""Objects that are refused as a whole, and what there is instead."""

REMOVED = (
    "amp",
    "compression_training",
    "curriculum_learning",
    "eigenvalue",
    "elasticity",
    "graph_harvesting",
    "nebula",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "sparse_gradients",
    f"{_ZERO}.mics_hierarchical_params_gather",
    f"{_ZERO}.mics_shard_size",
    f"{_ZERO}.zeropp_loco_param",
)
"""Keys that DeepSpeed itself has removed, and refuses."""


def without_equivalent(path: str) -> str:
    """Return a sentence that says that a recipe does not have a key, and what it has instead."""
    instead = INSTEAD.get(path) or SWITCHED.get(path) or BLOCKS.get(path)
    return f"a recipe has no equivalent{f': {instead}' if instead else ''}."


_RENAMED = {
    "cpu_offload": "engine.zero.offload_optimizer: {device: cpu}",
    "cpu_offload_param": "engine.zero.offload_param: {device: cpu}",
    "cpu_offload_params": "engine.zero.offload_param: {device: cpu}",
    "cpu_offload_use_pin_memory": "pin_memory of engine.zero.offload_optimizer or engine.zero.offload_param",
}
_SECTION = "engine.zero."


def of_deepspeed(path: str) -> str:
    """Return the advice for an unknown key of a recipe that is one of DeepSpeed's; empty otherwise."""
    if not path.startswith(_SECTION):
        return ""
    key = path.removeprefix(_SECTION)
    json_path = f"zero_optimization.{key}"
    if key in _RENAMED or json_path in SAME:
        return f" It is written {_RENAMED.get(key) or SAME[json_path]}."
    if json_path in UNREAD:
        return " Nothing in DeepSpeed 0.19 reads it, at any stage. Delete it."
    if json_path in SETTLED or json_path in REFUSED or json_path in BLOCKS:
        return f" It is DeepSpeed's; {without_equivalent(json_path)} Delete it."
    return ""
