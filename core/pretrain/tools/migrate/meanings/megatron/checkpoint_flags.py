"""Flags of checkpoints.

save_checkpoint, load_checkpoint and load_args_from_checkpoint in megatron/training/checkpointing.py, before 2024 in
megatron/checkpointing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Replaced, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_COMPLETE = "a checkpoint is always complete"
_SHARDED = "checkpoints are sharded, and any layout reads them"
_LATEST = "of checkpoint.load the one is taken whose number its latest_checkpointed_iteration.txt has: write it there"
_FROM_RECIPE = "the recipe alone says the model and its layout: a setting that only the checkpoint had is missing"
_SHORT_LIVED = "there is one kind of checkpoint: those of checkpoint.save_interval, in checkpoint.save"
_DUMPS = "no tensors of a step are written; checkpoints have the weights"

CHECKPOINTS: dict[str, Meaning] = {
    "save": Carried("checkpoint.save", how="false without it"),
    "save_interval": Carried("checkpoint.save_interval", how="with save alone"),
    "load": Carried("checkpoint.load"),
    "pretrained_checkpoint": Carried(
        "checkpoint.load", how="with checkpoint.finetune, where load has no checkpoint yet"
    ),
    "finetune": Carried("checkpoint.finetune", {True: True}, "finetune, or no_load_optim"),
    "no_load_optim": Carried(
        "checkpoint.finetune",
        {True: True},
        "finetune, or no_load_optim",
        "the weights alone; iterations are counted from 0 again",
    ),
    "async_save": Carried("checkpoint.async_save"),
    "no_load_rng": NoEffect("generators are restored if the layout is the checkpoint's, else seeded again"),
    "no_load_lr_state": NotSupported("the schedule goes on where the checkpoint's was, or starts again with all else"),
    "reset_iteration": NotSupported(
        "iterations are counted from 0 again only with checkpoint.finetune, without moments"
    ),
    "override_ckpt_iteration": NotSupported("iterations go on from the checkpoint's number"),
    "load_main_params_from_ckpt": NoEffect("main weights in fp32 are made of the weights that are loaded"),
    **alike(NotSupported(_LATEST), "ckpt_step load_tag"),
    **alike(NoEffect(_COMPLETE), "no_save_optim no_save_rng"),
    **alike(NotSupported(_FROM_RECIPE), "use_checkpoint_args use_mp_args_from_checkpoint_args"),
    "use_tokenizer_model_from_checkpoint_args": NoEffect("the recipe alone says which tokenizer it is"),
    "exit_on_missing_checkpoint": NotSupported(
        "checkpoint.load without a checkpoint is an error, but not if checkpoint.save is the same folder"
    ),
    "universal_checkpoint": NoEffect("a universal checkpoint is known by its files"),
    "save_retain_interval": NotSupported("checkpoint.keep is the number of latest checkpoints that stay"),
    "save_tokenizer_assets": NoEffect("the recipe in the run directory names the tokenizer's files"),
    "load_model_opt_format": NotSupported("checkpoints of quantized models are not read"),
    **alike(
        NotSupported(_SHORT_LIVED),
        "non_persistent_save_interval non_persistent_ckpt_type",
    ),
    **alike(
        Unread("it belongs to non_persistent_save_interval"),
        """non_persistent_global_ckpt_dir non_persistent_local_ckpt_dir non_persistent_local_ckpt_algo replication
        replication_jump replication_factor""",
    ),
    **alike(
        NotSupported(_DUMPS),
        """save_params_interval save_activations_interval save_tokens_per_expert_interval save_wgrads_interval
        save_dgrads_interval""",
    ),
    **alike(Replaced("pretrain checkpoint convert writes another format"), "ckpt_convert_format ckpt_convert_save"),
    **alike(
        NoEffect(_SHARDED),
        """ckpt_format dist_ckpt_format dist_ckpt_format_deprecated use_dist_ckpt use_dist_ckpt_deprecated
        auto_detect_ckpt_format ckpt_convert_update_legacy_dist_opt_format ckpt_fully_parallel_save
        ckpt_fully_parallel_save_deprecated ckpt_fully_parallel_save_process_group ckpt_fully_parallel_load
        ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_per_rank_objects
        ckpt_fully_parallel_load_process_group ckpt_assume_constant_structure ckpt_drop_redundant_extra_state
        ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path dist_ckpt_workers dist_ckpt_save_pre_mcore_014
        dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient stream_ckpt_dequant""",
    ),
    **alike(
        NoEffect("a checkpoint whose parts are missing or damaged is always an error"),
        "dist_ckpt_strictness ckpt_load_validate_sharding_integrity verify_integrity",
    ),
    **alike(
        NoEffect("it says how a checkpoint is written in the background, not what is in it"),
        """async_strategy async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm
        use_persistent_ckpt_worker""",
    ),
}
"""By dest."""
