"""Keys that Megatron-LM has no flag for, and what changes without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROPE = "rope is scaled there with the numbers of Llama 3.1: low_freq_factor 1, high_freq_factor 4 and 8192 positions"
_STARTS = (
    "weights start with the standard deviation --init-method-std, those of last layers with it / sqrt(2 num_layers)"
)
_KERNEL = "Megatron-LM and Transformer Engine choose their kernels themselves"
_DEEPSPEED = "it is DeepSpeed's: memory and speed can differ, the results do not"
_SPIKE = "a loss that rises suddenly is not answered"
_DEVICE = "it stays on the device and takes more of its memory"

WITHOUT_FLAG: Mapping[str, str] = {
    "model.rope_low_freq_factor": _ROPE,
    "model.rope_high_freq_factor": _ROPE,
    "model.original_max_position_embeddings": _ROPE,
    "model.parallel_residual": "attention and MLP come one after the other: it is another model",
    "model.embedding_layernorm": "the embedding's output is not normalized: it is another model",
    "model.init_method": _STARTS,
    "model.output_layer_init_method": _STARTS,
    "tokenizer.vocab_size": "no tokenizer is trained: its file has to be there",
    "data.corpus": "no token file is built: it has to be there, pretrain data build makes it",
    "data.index": "samples come in the order of Megatron-LM's index files, which is another",
    "train.kill_switch_path": "no file ends the training; --exit-signal-handler saves and exits at SIGTERM",
    "train.loss_spike.threshold": _SPIKE,
    "train.loss_spike.action": _SPIKE,
    "train.loss_spike.leave_out": _SPIKE,
    "logging.hang_after_seconds": "a rank that hangs ends the run when its collectives time out, without a report",
    "optimizer.name": "weight decay is decoupled from the gradient: Megatron-LM's adam is adamw",
    "checkpoint.keep": "all checkpoints are kept",
    "evaluation.target_loss": "no loss to reach is checked at the end",
    "evaluation.prompt": "no text is continued at the end",
    "evaluation.prompt_tokens": "no text is continued at the end",
    "engine.deepspeed_config": _DEEPSPEED,
    "engine.zero.offload_optimizer.device": _DEVICE,
    "engine.zero.offload_param.device": _DEVICE,
    **dict.fromkeys(
        (
            "engine.zero.contiguous_gradients",
            "engine.zero.reduce_scatter",
            "engine.zero.allgather_bucket_size",
            "engine.zero.round_robin_gradients",
            "engine.zero.sub_group_size",
            "engine.zero.stage3_prefetch_bucket_size",
            "engine.zero.stage3_param_persistence_threshold",
            "engine.zero.stage3_model_persistence_threshold",
            "engine.zero.stage3_max_live_parameters",
            "engine.zero.stage3_max_reuse_distance",
            "engine.zero.offload_optimizer.nvme_path",
            "engine.zero.offload_optimizer.pin_memory",
            "engine.zero.offload_optimizer.buffer_count",
            "engine.zero.offload_optimizer.fast_init",
            "engine.zero.offload_optimizer.pipeline_read",
            "engine.zero.offload_optimizer.pipeline_write",
            "engine.zero.offload_optimizer.cpu_adam",
            "engine.zero.offload_param.nvme_path",
            "engine.zero.offload_param.pin_memory",
            "engine.zero.offload_param.buffer_count",
            "engine.zero.offload_param.buffer_size",
            "engine.zero.offload_param.max_in_cpu",
        ),
        _DEEPSPEED,
    ),
    **dict.fromkeys(
        (
            "kernels.triangle_block_size",
            "kernels.softmax",
            "kernels.norm",
            "kernels.rotary",
            "kernels.activation",
            "kernels.bias_dropout_add",
            "kernels.cross_entropy",
            "kernels.linear",
            "kernels.optimizer",
            "kernels.collectives",
            "kernels.fallback",
            "kernels.compile",
        ),
        _KERNEL,
    ),
}
"""What changes, a sentence without its period, by "section.key"; of a section for all its keys."""
