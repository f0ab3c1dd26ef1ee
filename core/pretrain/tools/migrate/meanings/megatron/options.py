"""Options of launchers and of preprocess_data.py, and what they are in pretrain.

torchrun and torch.distributed.launch; DeepSpeed's launcher and GPT-NeoX's settings for it; srun and mpirun;
tools/preprocess_data.py of Megatron-LM and both Megatron-DeepSpeeds, tools/datasets/preprocess_data.py of GPT-NeoX.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Launched, NoEffect, NotSupported, Replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meanings.meaning import Meaning

_RANKS = "pretrain starts and joins its ranks by itself; under torchrun it is torchrun's"
_HOSTS = "the hostfile has the nodes of the run, and no others"
_PDSH = "--hostfile starts the nodes by pdsh; srun and mpirun start one process on each node with --nnodes"
_SLURM = "it belongs to srun, under which each rank can call pretrain run"

LAUNCHERS: Mapping[str, Meaning] = MappingProxyType(
    {
        **alike(Launched("--nproc"), "nproc_per_node nproc num_gpus ntasks_per_node gpus_per_node gpus"),
        "global_num_gpus": Launched("--nproc and --nnodes"),
        **alike(Launched("--nnodes"), "nnodes num_nodes nodes"),
        **alike(Launched("--rdzv HOST:PORT"), "master_addr master_port rdzv_endpoint"),
        "node_rank": Launched("--node-rank"),
        "hostfile": Launched("--hostfile"),
        "launcher": NoEffect(_PDSH),
        **alike(
            NoEffect(_RANKS),
            """local_rank rdzv_backend rdzv_id rdzv_conf max_restarts monitor_interval start_method tee redirects
            standalone role local_addr use_env logs_specs""",
        ),
        **alike(NotSupported(_HOSTS), "include exclude"),
        **alike(NoEffect(_SLURM), "ntasks partition account job_name cpus_per_task"),
    }
)
"""By the option without its leading dashes, with underscores."""

_WORDS = "it serves BERT and T5, and is not offered; a list of sentences under --json-key stays one"
_FROM_FILES = "the tokenizer's files say it"
_PADDING = "padding belongs to the model: model.make_vocab_size_divisible_by of a recipe"
_WORKERS = "any number of workers writes the same files: --workers is one for each core by default"

BUILD_MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        "input": Launched("--input"),
        "output_prefix": Launched("--output-prefix"),
        **alike(Launched("--json-key"), "json_keys jsonl_keys"),
        "tokenizer_type": Launched("--tokenizer-type"),
        "vocab_file": Launched("--vocab-file"),
        "vocab": Launched("--vocab-file"),
        "merge_file": Launched("--merge-file"),
        **alike(Launched("--tokenizer-file"), "tokenizer_model tokenizer_name_or_path"),
        "append_eod": Launched("--append-eod"),
        "workers": Launched("--workers"),
        "ftfy": Launched("--clean"),
        "partitions": Launched("--shard I/N"),
        **alike(NoEffect("token files are always memory-mapped (mmap)"), "dataset_impl data_impl"),
        "log_interval": NoEffect("the build shows its progress"),
        "chunk_size": NoEffect("chunks of documents have a fixed size"),
        "num_docs": NoEffect("progress is measured by the size of the inputs"),
        "files_per_subprocess": NoEffect("documents, not files, are handed to the workers"),
        "keep_sequential_samples": NoEffect("documents always keep their order"),
        **alike(NoEffect(_FROM_FILES), "vocab_size padded_vocab_size vocab_extra_ids"),
        **alike(NoEffect(_PADDING), "make_vocab_size_divisible_by pad_vocab_size_to"),
        "tensor_model_parallel_size": NoEffect("token files are the same for every layout"),
        "trust_remote_code": NoEffect("a tokenizer.json runs no code"),
        "seq_length": NoEffect("documents are cut into sequences by the training"),
        "keep_newlines": NoEffect("nothing is taken out of a text"),
        "lang": NoEffect("it belongs to --split-sentences, which is not offered"),
        **alike(NoEffect(_WORKERS), "find_optimal_num_workers workers_to_check max_documents"),
        "split_sentences": NotSupported(_WORDS),
        "datasets": Replaced("pretrain data merge joins token files"),
    }
)
"""Flags of preprocess_data.py, in the same way."""
