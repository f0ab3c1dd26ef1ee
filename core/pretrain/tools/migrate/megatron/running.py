"""Flags of checkpoints.

save_checkpoint, load_checkpoint and load_args_from_checkpoint in megatron/training/checkpointing.py, before 2024 in
megatron/checkpointing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron.data import trains_on_all
from pretrain.tools.migrate.setting import Derived, note_on_start, save, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_COMPLETE = "a checkpoint is always complete"
_SHARDED = "checkpoints are sharded, and any layout reads them"
_LATEST = "of checkpoint.load the one is taken whose number its latest_checkpointed_iteration.txt has: write it there"
_FROM_RECIPE = "the recipe alone says the model and its layout: a setting that only the checkpoint had is missing"
_SHORT_LIVED = "there is one kind of checkpoint: those of checkpoint.save_interval, in checkpoint.save"
_DUMPS = "no tensors of a step are written; checkpoints have the weights"

CHECKPOINTS: dict[str, Meaning] = {
    "save": Mapped("checkpoint.save", how="false without it"),
    "save_interval": Mapped("checkpoint.save_interval", how="with save alone"),
    "load": Mapped("checkpoint.load"),
    "pretrained_checkpoint": Mapped(
        "checkpoint.load", how="with checkpoint.finetune, where load has no checkpoint yet"
    ),
    "finetune": Mapped("checkpoint.finetune", {True: True}, "finetune, or no_load_optim"),
    "no_load_optim": Mapped(
        "checkpoint.finetune",
        {True: True},
        "finetune, or no_load_optim",
        "the weights alone; iterations are counted from 0 again",
    ),
    "async_save": Mapped("checkpoint.async_save"),
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
        Ignored("it belongs to non_persistent_save_interval"),
        "non_persistent_* replication replication_jump replication_factor",
    ),
    **alike(
        NotSupported(_DUMPS),
        """save_params_interval save_activations_interval save_tokens_per_expert_interval save_wgrads_interval
        save_dgrads_interval""",
    ),
    **alike(Replaced("pretrain checkpoint convert writes another format"), "ckpt_convert_format ckpt_convert_save"),
    **alike(
        NoEffect(_SHARDED),
        """ckpt_* dist_ckpt_* use_dist_ckpt use_dist_ckpt_deprecated auto_detect_ckpt_format
        distrib_optim_fully_reshardable_mem_efficient stream_ckpt_dequant""",
    ),
    **alike(
        NoEffect("a checkpoint whose parts are missing or damaged is always an error"),
        "dist_ckpt_strictness ckpt_load_validate_sharding_integrity verify_integrity",
    ),
    **alike(
        NoEffect("it says how a checkpoint is written in the background, not what is in it"),
        "async_strategy async_ckpt_* use_persistent_ckpt_worker",
    ),
}
"""By dest."""


_EVERY = "eval_interval; 0, no evaluation, where eval_iters is 0 or eval_interval is not given and has no default"
_TIMERS = "log_timers_to_tensorboard, or a timing_log_level above 0"
_ALWAYS = "it is always written to TensorBoard and metrics.jsonl"
_SERVICE = "metrics.jsonl and tensorboard/ of the run directory have every number; no service is written to"
_PROFILER = "no trace of a profiler is written; logging.log_timers: true times the phases of a step"
_MEASURED = "it is not measured; metrics.jsonl has loss, gradient norm, memory, time and TFLOP/s of a device"
_RERUN = (
    "a step whose results are suspicious is not computed again; train.check_replicas_interval finds faulty devices, "
    "train.loss_spike losses that rise"
)
_RESTART = "ranks that fail end all ranks; --max-restarts starts them again from the last checkpoint"
_STRAGGLER = "the slowest rank is named in every logged line, without a port or a switch at run time"

EVALUATION: dict[str, Meaning] = {
    "eval_interval": Mapped("evaluation.interval", how=_EVERY),
    "eval_iters": Mapped("evaluation.iters", how="if it is not 0"),
    "start_eval_at_iter": NotSupported("evaluations begin with the first multiple of evaluation.interval"),
    "eval_global_batch_size": NotSupported("an evaluation has the batches of the training: train.global_batch_size"),
    "eval_micro_batch_size": NotSupported("an evaluation has the batches of the training: train.micro_batch_size"),
    "full_validation": NotSupported("an evaluation has evaluation.iters batches, not all of the validation text"),
    **alike(
        NotSupported("the validation text of a blend has one loss, not one for each token file"),
        "multiple_validation_sets validation_set_names",
    ),
    "test_mode": NotSupported("no tests run beside the training"),
}
"""Flags of evaluation."""

METRICS: dict[str, Meaning] = {
    "log_interval": Mapped("logging.log_interval"),
    "log_params_norm": Mapped("logging.log_params_norm"),
    "log_num_zeros_in_grad": Mapped("logging.log_num_zeros_in_grad"),
    "tensorboard_queue_size": Mapped("logging.tensorboard_queue_size"),
    "log_timers_to_tensorboard": Mapped("logging.log_timers", {True: True}, _TIMERS),
    "timing_log_level": Mapped(
        "logging.log_timers", {0: False, 1: True, 2: True, "0": False, "1": True, "2": True}, _TIMERS
    ),
    "timing_log_option": NotSupported("times of phases are the least and the most of all ranks", ("minmax",)),
    "barrier_with_L1_time": NoEffect("phases are timed without barriers between ranks"),
    "tensorboard_dir": Replaced("its files are in tensorboard/ of the run directory: --run-dir"),
    "tensorboard_log_interval": Replaced("TensorBoard gets every line of metrics.jsonl"),
    "log_path": Replaced("the recipe and the logs are in the run directory: --run-dir"),
    "config_logger_dir": Replaced("the complete recipe is in the run directory: --run-dir"),
    "log_throughput": NoEffect("every line of metrics has it"),
    "log_progress": NoEffect("every line of metrics has tokens and FLOP/s"),
    "log_world_size_to_tensorboard": Replaced("environment.json of the run directory has it"),
    **alike(
        NoEffect(_ALWAYS),
        "log_*_to_tensorboard log_memory_interval",
    ),
    **alike(
        NotSupported(_MEASURED),
        """log_optimizer_states_to_tensorboard log_max_attention_logit log_device_memory_used log_energy
        codecarbon_dir""",
    ),
    **alike(
        Replaced(_SERVICE),
        "wandb_* enable_one_logger one_logger_* app_tag_* otel_*",
    ),
    **alike(NoEffect("the log of a run is always complete"), "logging_level log_level log_level_replica"),
}
"""Flags of metrics."""

PROFILING: dict[str, Meaning] = {
    **alike(NotSupported(_PROFILER), "profile record_memory_history nvtx_ranges run_workload_inspector_server"),
    **alike(
        Ignored("it belongs to profile"),
        "profile_* use_pytorch_profiler record_shapes pytorch_profiler_*",
    ),
    "memory_snapshot_path": Ignored("it belongs to record_memory_history"),
}
"""Flags of profilers."""

WATCHING: dict[str, Meaning] = {
    **alike(
        NotSupported(_RERUN, ("disabled",)),
        "rerun_mode check_for_spiky_loss check_for_large_grads gpu_sniff_test_interval",
    ),
    "result_rejected_tracker_filename": Ignored("it belongs to rerun_mode"),
    **alike(
        NoEffect("no faults are put into a run on purpose"),
        "error_injection_* fault_injector_*",
    ),
    **alike(
        Replaced(_RESTART),
        "inprocess_* enable_ft_package calc_ft_timeouts ft_num_warmup_iters",
    ),
    "log_straggler": Mapped("logging.log_straggler"),
    **alike(
        NoEffect(_STRAGGLER),
        "disable_straggler_on_startup straggler_ctrlr_port straggler_minmax_count",
    ),
    **alike(
        NoEffect("a run that hangs writes its latest collectives below hang/ of its folder"),
        "flight_recorder_*",
    ),
}
"""Flags of what watches over devices and ranks."""

LOGGING = EVALUATION | METRICS | PROFILING | WATCHING
"""All of them, by dest."""


_WEIGHTS_ALONE = ("finetune", "no_load_optim")


def save_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two checkpoints."""
    given = settings.value("save_interval")
    if given is None:
        return None
    if settings.value("save") is None:
        return unused("save_interval", "without --save nothing is saved")
    return Derived(given, ("save_interval",))


def finetune(settings: Settings) -> Derived | None:
    """Return whether only the weights are loaded."""
    name = next((name for name in _WEIGHTS_ALONE if settings.value(name)), None)
    if name is None:
        return None
    if settings.value("load") is None:
        return unused(name, "nothing is loaded")
    change = "the run starts at iteration 0, while there the iterations of the checkpoint go on"
    return Derived(True, (name,), lost=((name, change),) if name == "no_load_optim" else ())


def evaluation_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two evaluations; none without iterations of one."""
    if settings.value("eval_iters") == 0:
        return Derived(0, ("eval_iters",))
    if trains_on_all(settings):
        why = "no validation text is left: all of --train-data-path is for training"
        return Derived(0, ("train_data_path",), why, idle=(("eval_interval", why),))
    given = settings.value("eval_interval")
    if given is None:
        return Derived(0, ("eval_interval",), "without --eval-interval the program never evaluates in training")
    return Derived(given, ("eval_interval",))


def evaluation_iters(settings: Settings) -> Derived | None:
    """Return the global batches of an evaluation."""
    given = settings.value("eval_iters")
    return Derived(given, ("eval_iters",)) if given else None


def log_timers(settings: Settings) -> Derived | None:
    """Return whether the phases of an iteration are timed."""
    if settings.value("log_timers_to_tensorboard"):
        return Derived(True, ("log_timers_to_tensorboard",))
    return Derived(True, ("timing_log_level",)) if settings.value("timing_log_level") else None


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from; --pretrained-checkpoint counts where --load has nothing yet."""
    name = next((name for name in ("load", "pretrained_checkpoint") if settings.value(name) is not None), None)
    if name is None:
        return None
    change = "it would be taken where --load is empty; here checkpoint.load is what the run starts from"
    both = name == "load" and settings.value("pretrained_checkpoint") is not None
    given = settings.value(name)
    return Derived(
        given, (name,), note_on_start(settings, given), lost=(("pretrained_checkpoint", change),) if both else ()
    )


def manual_gc_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two collections; 0 leaves the interval as it is here."""
    given = settings.value("manual_gc_interval")
    return Derived(given, ("manual_gc_interval",)) if given and "manual_gc_interval" in settings.stated else None


def reset_attention_mask(settings: Settings) -> Derived | None:
    """Return whether a token sees only its own document."""
    names = ("reset_attention_mask", "dataloader_inter_document_masking")
    stated = tuple(name for name in names if settings.value(name))
    return Derived(True, stated) if stated else Derived(False, names)


FUNCTIONS: Mapping[str, Function] = {
    "data.reset_attention_mask": reset_attention_mask,
    "train.manual_gc_interval": manual_gc_interval,
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.save_interval": save_interval,
    "checkpoint.finetune": finetune,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": evaluation_iters,
    "logging.log_timers": log_timers,
}
"""By key of the recipe."""
