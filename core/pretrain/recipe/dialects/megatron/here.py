"""Flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX that have another name here."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Here(NamedTuple):
    """Name of a flag here.

    Attributes:
        key: "section.key"; "section.key=value" for a flag without a value, or whose value is another one here. A value
            in capitals has to be worked out from the flag's.
        note: what is different.
        values: what values of the flag are called here.
    """

    key: str
    note: str = ""
    values: Mapping[str, str] = MappingProxyType({})


_FLASH = Here("kernels.attention=flash", "auto, the default, takes it where the backend has it")
_IN_SAMPLES = "tokens / model.seq_length"

HERE = {
    # model
    "pos_emb": Here("model.position_embedding_type", values={"rotary": "rope", "learned": "learned_absolute"}),
    "use_rotary_position_embeddings": Here("model.position_embedding_type=rope"),
    "rotary_pct": Here("model.rotary_percent"),
    "rotary_emb_base": Here("model.rotary_base"),
    "norm": Here("model.normalization", values={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}),
    "norm_epsilon": Here("model.layernorm_epsilon"),
    "swiglu": Here("model.activation=swiglu"),
    "openai_gelu": Here("model.activation=gelu_tanh"),
    "bias_gelu_fusion": Here("model.activation=gelu_tanh", "which the fused kernel computes in the place of gelu"),
    "no_bias_gelu_fusion": Here("model.activation=gelu", "the default; Megatron's fused kernel computes gelu_tanh"),
    "disable_bias_linear": Here("model.add_bias_linear=false"),
    "no_weight_tying": Here("model.untie_embeddings_and_output_weights=true"),
    "gpt_j_residual": Here("model.parallel_residual=true"),
    "embed_layernorm": Here("model.embedding_layernorm=true"),
    "no_query_key_layer_scaling": Here("model.apply_query_key_layer_scaling=false", "the default"),
    # tokenizer and data
    "vocab": Here("tokenizer.vocab_file"),
    "tokenizer_type": Here("tokenizer.type"),
    "tokenizer_model": Here("tokenizer.file", "a tokenizer.json"),
    "data_path": Here("data.path"),
    "data_cache_path": Here("data.cache_path"),
    # length and batch
    "train_micro_batch_size_per_gpu": Here("train.micro_batch_size"),
    "train_batch_size": Here("train.global_batch_size"),
    "train_tokens": Here("train.train_samples=SAMPLES", _IN_SAMPLES),
    # precision
    "fp16": Here("precision.dtype=fp16"),
    "bf16": Here("precision.dtype=bf16"),
    "accumulate_allreduce_grads_in_fp32": Here("precision.grad_reduce_in_fp32=true"),
    # parallelism and recomputation
    "model_parallel_size": Here("parallel.tensor_model_parallel_size"),
    "pipe_parallel_size": Here("parallel.pipeline_model_parallel_size"),
    "num_layers_per_virtual_pipeline_stage": Here(
        "parallel.virtual_pipeline_model_parallel_size=CHUNKS", "layers of a stage / layers of a chunk"
    ),
    "decoder_first_pipeline_num_layers": Here("parallel.num_layers_in_first_pipeline_stage"),
    "decoder_last_pipeline_num_layers": Here("parallel.num_layers_in_last_pipeline_stage"),
    "pipeline_model_parallel_layout": Here("parallel.pipeline_layers=LAYERS", "of every stage, such as [5, 6, 6, 5]"),
    "no_overlap_p2p_communication": Here("parallel.overlap_p2p_comm=false"),
    "checkpoint_activations": Here("recompute.granularity=full"),
    "recompute_activations": Here("recompute.granularity=selective"),
    "recompute_granularity": Here("recompute.granularity"),
    "recompute_method": Here("recompute.method"),
    "recompute_num_layers": Here("recompute.num_layers"),
    "checkpoint_num_layers": Here("recompute.num_layers"),
    "partition_activations": Here("recompute.distribute_saved_activations=true"),
    # optimizer and schedule
    "optimizer": Here("optimizer.name=adamw", "which Megatron calls adam; there is no sgd"),
    "gradient_clipping": Here("optimizer.clip_grad"),
    "warmup": Here("schedule.lr_warmup_fraction"),
    "lr_warmup_tokens": Here("schedule.lr_warmup_samples=SAMPLES", _IN_SAMPLES),
    "lr_decay_tokens": Here("schedule.lr_decay_samples=SAMPLES", _IN_SAMPLES),
    # engine
    "deepspeed": Here("engine.name=deepspeed"),
    "zero_stage": Here("engine.zero.stage", "with engine.name=deepspeed"),
    "zero_optimization": Here("engine.zero", "with engine.name=deepspeed"),
    # kernels
    "use_flash_attn": _FLASH,
    "use_flash_attn_v1": _FLASH,
    "use_flash_attn_v2": _FLASH,
    "use_flash_attn_triton": _FLASH,
    "attention_backend": Here("kernels.attention", "auto, flash, triangle, softmax or a kernel's own name"),
    "use_triangle_attn": Here("kernels.attention=triangle"),
    # checkpoints, evaluation, logging
    "checkpoint_factor": Here("checkpoint.save_interval"),
    "keep_last_n_checkpoints": Here("checkpoint.keep"),
    "no_load_optim": Here("checkpoint.finetune=true", "the weights alone; iterations are counted from 0 again"),
    "eval_interval": Here("evaluation.interval"),
    "eval_iters": Here("evaluation.iters"),
    "log_timers_to_tensorboard": Here("logging.log_timers=true"),
    "timing_log_level": Here("logging.log_timers=true"),
    "wall_clock_breakdown": Here("logging.log_timers=true"),
    "steps_per_print": Here("logging.log_interval"),
}
"""By the flag's name, with underscores and in small letters."""

OPTIONS = {
    "nproc_per_node": "--nproc",
    "num_gpus": "--nproc",
    "global_num_gpus": "--nproc and --nnodes",
    "num_nodes": "--nnodes",
    "master_addr": "--rdzv HOST:PORT",
    "master_port": "--rdzv HOST:PORT",
    "rdzv_endpoint": "--rdzv HOST:PORT",
}
"""Options of torchrun, of DeepSpeed's launcher and of GPT-NeoX's that are options of pretrain run."""

BUILD_OPTIONS = {
    "jsonl_keys": "--json-key",
    "tokenizer_model": "--tokenizer-file",
    "ftfy": "--clean",
    "partitions": "--shard I/N",
}
"""Options of preprocess_data.py that are options of pretrain data build."""
