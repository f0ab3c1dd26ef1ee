"""Flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX that nothing here corresponds to, and why."""

from __future__ import annotations

_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others."
_ALWAYS = "it is always written to TensorBoard and metrics.jsonl."
_MCORE = "the model is always megatron-core's."
_LAUNCHER = "pretrain starts and joins its ranks by itself; under torchrun it is torchrun's."
_COMPLETE = "a checkpoint is always complete."

NOT_NEEDED = {
    # data
    "data_impl": "token files are always memory-mapped (mmap).",
    "dataset_impl": "token files are always memory-mapped (mmap).",
    "mmap_warmup": "the operating system reads ahead.",
    "vocab_size": "the tokenizer's files say it.",
    "vocab_extra_ids": "a GPT needs none.",
    "dataloader_type": "samples come in the order of Megatron's single, or of data.index; there is no cyclic.",
    # devices and collectives
    "distributed_backend": "the device's plugin says which collectives it has: --backend.",
    "ddp_impl": "there is one kind of data parallelism, with contiguous buffers; engine.name chooses who splits what.",
    "use_contiguous_buffers_in_local_ddp": "gradients always lie in contiguous buffers.",
    "no_contiguous_buffers_in_local_ddp": "gradients always lie in contiguous buffers.",
    "empty_unused_memory_level": "the device's plugin has its allocator.",
    "use_ring_exchange_p2p": "the device's plugin says how its point-to-point calls are made.",
    "lazy_mpu_init": "groups are made once, when the run starts.",
    "scatter_gather_tensors_in_pipeline": "parallel.sequence_parallel splits what goes between stages.",
    "no_scatter_gather_tensors_in_pipeline": "parallel.sequence_parallel splits what goes between stages.",
    "output_layer_parallelism": "the output layer is always split by columns, over the vocabulary.",
    "gradient_accumulation_steps": "it follows: global_batch_size / (micro_batch_size x data-parallel size).",
    # kernels
    **dict.fromkeys(
        (
            "masked_softmax_fusion",
            "no_masked_softmax_fusion",
            "scaled_masked_softmax_fusion",
            "scaled_upper_triang_masked_softmax_fusion",
            "bias_swiglu_fusion",
            "no_bias_swiglu_fusion",
            "bias_dropout_fusion",
            "no_bias_dropout_fusion",
            "gradient_accumulation_fusion",
            "no_gradient_accumulation_fusion",
            "no_persist_layer_norm",
            "rope_fusion",
            "no_rope_fusion",
            "async_tensor_model_parallel_allreduce",
            "no_async_tensor_model_parallel_allreduce",
            "transformer_impl",
        ),
        _FUSION,
    ),
    "group_query_attention": "model.num_query_groups alone switches it on.",
    "use_cpu_initialization": "weights start with the same values however they are laid out.",
    "use_mcore_models": _MCORE,
    "use_legacy_models": _MCORE,
    "synchronize_each_layer": "recomputation needs no barriers.",
    "deepspeed_activation_checkpointing": "section recompute is the same for both engines.",
    # checkpoints
    "no_save_optim": _COMPLETE,
    "no_save_rng": _COMPLETE,
    "no_load_rng": "generators are restored if the layout is the checkpoint's, else seeded again.",
    "ckpt_format": "checkpoints are sharded, and any layout reads them.",
    "dist_ckpt_format": "checkpoints are sharded, and any layout reads them.",
    "use_dist_ckpt": "checkpoints are sharded, and any layout reads them.",
    "use_checkpoint_args": "the recipe in the run directory is complete.",
    "exit_signal_handler": "SIGTERM and Ctrl-C always save a checkpoint and exit.",
    # logging
    "tensorboard_dir": "TensorBoard's files are in tensorboard/ of the run directory: --run-dir.",
    "tensorboard_log_interval": "TensorBoard gets every line of metrics.jsonl.",
    "log_dir": "logs are in the run directory: --run-dir.",
    "log_throughput": "every line of metrics has it.",
    "log_batch_size_to_tensorboard": _ALWAYS,
    "log_learning_rate_to_tensorboard": _ALWAYS,
    "log_loss_scale_to_tensorboard": _ALWAYS,
    "log_memory_to_tensorboard": _ALWAYS,
    "log_world_size_to_tensorboard": "environment.json of the run directory has it.",
    "log_validation_ppl_to_tensorboard": _ALWAYS,
    # launchers
    "local_rank": _LAUNCHER,
    "rdzv_backend": _LAUNCHER,
    "rdzv_id": _LAUNCHER,
    "max_restarts": _LAUNCHER,
    "tee": _LAUNCHER,
    "standalone": _LAUNCHER,
}
"""By the flag's name, with underscores and in small letters."""

BUILD_NOT_NEEDED = {
    "log_interval": "the build shows its progress.",
    "chunk_size": "chunks of documents have a fixed size.",
    "num_docs": "progress is measured by the size of the inputs.",
    "files_per_subprocess": "documents, not files, are handed to the workers.",
    "keep_sequential_samples": "documents always keep their order.",
    "vocab_size": "the tokenizer's files say it.",
    "make_vocab_size_divisible_by": "padding belongs to the model: model.make_vocab_size_divisible_by of a recipe.",
    "tensor_model_parallel_size": "token files are the same for every layout.",
    "split_sentences": "it serves BERT and T5, and is not offered; a list of sentences under --json-key stays one.",
    "keep_newlines": "nothing is taken out of a text.",
    "lang": "it belongs to --split-sentences, which is not offered.",
}
"""Flags of preprocess_data.py, in the same way."""
