"""Meanings of all flags of pretrain_gpt.py's training, in every version of Megatron-LM and both Megatron-DeepSpeeds."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.tools.migrate.meaning import Launched, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron import data, engine, kernels, learning_rate, model, parallel, running, training
from pretrain.tools.migrate.megatron.data import DATA
from pretrain.tools.migrate.megatron.engine import ENGINE
from pretrain.tools.migrate.megatron.kernels import COMPUTATION, PRECISION
from pretrain.tools.migrate.megatron.model import MODEL
from pretrain.tools.migrate.megatron.other_uses import LAYERS, MINDSPEED, PROGRAMS, USES
from pretrain.tools.migrate.megatron.parallel import PARALLEL
from pretrain.tools.migrate.megatron.running import CHECKPOINTS, LOGGING
from pretrain.tools.migrate.megatron.training import TRAINING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function


TABLES: tuple[dict[str, Meaning], ...] = (
    *(
        MODEL,
        DATA,
        TRAINING,
        PRECISION,
        PARALLEL,
        COMPUTATION,
        ENGINE,
        CHECKPOINTS,
        LOGGING,
        LAYERS,
        PROGRAMS,
        USES,
        MINDSPEED,
    ),
)
"""Tables by subject, which have no flag in common."""

MEANINGS: Mapping[str, Meaning] = MappingProxyType({name: found for table in TABLES for name, found in table.items()})
"""By dest, as argparse has it: "num_layers", "DDP_impl"; "moe_*" are those of `grouped` that begin so."""

GROUPED = "megatron_grouped.txt"
"""File of the flags' names, which tests/tools/migrate/programs/extract_flags.py extends."""

_GROUPS = {name: found for name, found in MEANINGS.items() if "*" in name}

_PARTS = (model, data, training, learning_rate, kernels, parallel, engine, running)

FUNCTIONS: Mapping[str, Function] = {key: found for part in _PARTS for key, found in part.FUNCTIONS.items()}
"""By key of the recipe."""

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

_SCALE_OF_FILE = "fp16 of DeepSpeed's file with --deepspeed, else the flag"
_DEEPSPEED: Mapping[str, Meaning] = {
    "clip_grad": Mapped(
        "optimizer.clip_grad", how="gradient_clipping of DeepSpeed's file with --deepspeed, else the flag"
    ),
    **{
        name: Mapped(f"precision.{name}", how=_SCALE_OF_FILE)
        for name in ("loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")
    },
}
_FSDP = "replicas have all weights: to split them, engine.name: deepspeed with engine.zero.stage: 3"

MEANINGS_OF: Mapping[str, Mapping[str, Meaning]] = MappingProxyType(
    {
        "megatron-deepspeed": {
            **_DEEPSPEED,
            "DDP_impl": NotSupported(_FSDP, ("local", "torch")),
        },
        "bigscience": _DEEPSPEED,
    }
)
"""Meanings that a program has of its own, by the beginning of its name."""


def meaning_of(name: str, program: str = "") -> Meaning | None:
    """Return the meaning of a flag; None if it is unknown.

    Args:
        name: dest.
        program: name of a program, "megatron-deepspeed-2023"; empty for Megatron-LM's newest.
    """
    for beginning, own in MEANINGS_OF.items():
        if program.startswith(beginning) and name in own:
            return own[name]
    if name in MEANINGS:
        return MEANINGS[name]
    return group_of(name) if name in grouped() else None


def group_of(name: str) -> Meaning | None:
    """Return the meaning of all flags that begin like a name, even of one that no program has."""
    return next((found for group, found in _GROUPS.items() if fnmatchcase(name, group)), None)


@cache
def grouped() -> frozenset[str]:
    """Return the flags of all versions that only have a meaning with those that begin like them."""
    text = resources.files("pretrain.tools.migrate").joinpath(GROUPED).read_text(encoding="utf-8")
    return frozenset(text.split())


def is_listed(name: str) -> bool:
    """Say whether a flag has a meaning of its own, and not only one with all that begin like it."""
    return name in MEANINGS or any(name in own for own in MEANINGS_OF.values())


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


class Spelled(NamedTuple):
    """A flag's dest.

    Attributes:
        name: dest.
        given: value of a switch; None for a flag that takes a value.
    """

    name: str
    given: Any = None


SPELLINGS: Mapping[str, Spelled] = {
    "bert_no_binary_head": Spelled("bert_binary_head", given=False),
    "disable_bias_linear": Spelled("add_bias_linear", given=False),
    "disable_gloo_process_groups": Spelled("use_gloo_process_groups", given=False),
    "disable_msc": Spelled("disable_msc_deprecated", given=True),
    "fp4_format": Spelled("fp4"),
    "fp8_format": Spelled("fp8"),
    "inference_dynamic_batching_prefix_caching": Spelled(
        "inference_dynamic_batching_enable_prefix_caching", given=True
    ),
    "microbatch_group_size_per_virtual_pipeline_stage": Spelled("microbatch_group_size_per_vp_stage"),
    "muon_no_split_qkv": Spelled("muon_split_qkv", given=False),
    "no_barrier_with_level_1_timing": Spelled("barrier_with_L1_time", given=False),
    "no_contiguous_buffers_in_local_ddp": Spelled("use_contiguous_buffers_in_local_ddp", given=False),
    "no_initialization": Spelled("perform_initialization", given=False),
    "no_log_learnig_rate_to_tensorboard": Spelled("log_learning_rate_to_tensorboard", given=False),
    "no_one_logger": Spelled("enable_one_logger", given=False),
    "no_overlap_p2p_communication": Spelled("overlap_p2p_comm", given=False),
    "no_position_embedding": Spelled("add_position_embedding", given=False),
    "no_query_key_layer_scaling": Spelled("apply_query_key_layer_scaling", given=False),
    "no_rope_fusion": Spelled("apply_rope_fusion", given=False),
    "output_logit_dtype": Spelled("logit_dtype"),
    "overlap_p2p_communication": Spelled("overlap_p2p_comm", given=True),
    "overlap_p2p_communication_warmup_flush": Spelled("overlap_p2p_comm_warmup_flush", given=True),
    "persistent_save_interval": Spelled("save_interval"),
    "retro_no_verify_neighbor_count": Spelled("retro_verify_neighbor_count", given=False),
    "rotary_position_embeddings_theta": Spelled("rope_theta"),
    "torch_fsdp2_no_reshard_after_forward": Spelled("torch_fsdp2_reshard_after_forward", given=False),
    "use_nccl_ub": Spelled("nccl_ub", given=True),
    "use_same_sampling_seed_across_dp_ranks": Spelled("offset_sampling_seed_by_dp_rank", given=False),
    "vocab": Spelled("vocab_file"),
}
"""By the flag without its leading dashes, with underscores."""


def spelled(flag: str, known: Mapping[str, object]) -> Spelled:
    """Return the dest of a flag, and the value of one that turns something off.

    Args:
        flag: without its leading dashes, with underscores.
        known: dests.
    """
    if flag in known:
        return Spelled(flag)
    if flag in SPELLINGS:
        return SPELLINGS[flag]
    on = flag.removeprefix("no_").removeprefix("disable_")
    name = SPELLINGS[on].name if on in SPELLINGS else on
    return Spelled(name, given=False) if on != flag and name in known else Spelled(flag)
