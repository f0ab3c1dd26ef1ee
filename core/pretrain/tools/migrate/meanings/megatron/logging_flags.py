"""Flags of evaluation and logging, and of what watches over a run.

evaluate_and_print_results and training_log in megatron/training/training.py; megatron/core/rerun_state_machine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Replaced, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

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
    "eval_interval": Carried("evaluation.interval", how=_EVERY),
    "eval_iters": Carried("evaluation.iters", how="if it is not 0"),
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
    "log_interval": Carried("logging.log_interval"),
    "log_params_norm": Carried("logging.log_params_norm"),
    "log_num_zeros_in_grad": Carried("logging.log_num_zeros_in_grad"),
    "tensorboard_queue_size": Carried("logging.tensorboard_queue_size"),
    "log_timers_to_tensorboard": Carried("logging.log_timers", {True: True}, _TIMERS),
    "timing_log_level": Carried(
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
        """log_batch_size_to_tensorboard log_learning_rate_to_tensorboard log_loss_scale_to_tensorboard
        log_memory_to_tensorboard log_validation_ppl_to_tensorboard log_memory_interval""",
    ),
    **alike(
        NotSupported(_MEASURED),
        """log_optimizer_states_to_tensorboard log_max_attention_logit log_device_memory_used log_energy
        codecarbon_dir""",
    ),
    **alike(
        Replaced(_SERVICE),
        """wandb_project wandb_exp_name wandb_save_dir wandb_entity enable_one_logger one_logger_async
        one_logger_entity one_logger_project one_logger_run_name app_tag_run_name app_tag_run_version otel_enabled
        otel_service_name otel_span_groups""",
    ),
    **alike(NoEffect("the log of a run is always complete"), "logging_level log_level log_level_replica"),
}
"""Flags of metrics."""

PROFILING: dict[str, Meaning] = {
    **alike(NotSupported(_PROFILER), "profile record_memory_history nvtx_ranges run_workload_inspector_server"),
    **alike(
        Unread("it belongs to profile"),
        """profile_steps profile_step_start profile_step_end profile_ranks use_pytorch_profiler record_shapes
        pytorch_profiler_collect_shapes pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra""",
    ),
    "memory_snapshot_path": Unread("it belongs to record_memory_history"),
}
"""Flags of profilers."""

WATCHING: dict[str, Meaning] = {
    **alike(
        NotSupported(_RERUN, ("disabled",)),
        "rerun_mode check_for_spiky_loss check_for_large_grads gpu_sniff_test_interval",
    ),
    "result_rejected_tracker_filename": Unread("it belongs to rerun_mode"),
    **alike(
        NoEffect("no faults are put into a run on purpose"),
        """error_injection_rate error_injection_type fault_injector_delay_start_iteration fault_injector_fault_delay
        fault_injector_fault_probabilities fault_injector_fault_types fault_injector_mtti_seconds
        fault_injector_num_ranks fault_injector_offset_seconds fault_injector_ranks fault_injector_seed""",
    ),
    **alike(
        Replaced(_RESTART),
        """inprocess_restart inprocess_active_world_size inprocess_barrier_timeout inprocess_completion_timeout
        inprocess_empty_cuda_cache inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval
        inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_max_iterations
        inprocess_monitor_process_interval inprocess_monitor_thread_interval inprocess_progress_watchdog_interval
        inprocess_soft_timeout inprocess_termination_grace_time enable_ft_package calc_ft_timeouts
        ft_num_warmup_iters""",
    ),
    "log_straggler": Carried("logging.log_straggler"),
    **alike(
        NoEffect(_STRAGGLER),
        "disable_straggler_on_startup straggler_ctrlr_port straggler_minmax_count",
    ),
    **alike(
        NoEffect("a run that hangs writes its latest collectives below hang/ of its folder"),
        """flight_recorder_dump_path flight_recorder_dump_on_timeout flight_recorder_extra_dump_on_exec
        flight_recorder_include_only_active flight_recorder_include_stack_trace flight_recorder_trace_buffer_size""",
    ),
}
"""Flags of what watches over devices and ranks."""

LOGGING = EVALUATION | METRICS | PROFILING | WATCHING
"""All of them, by dest."""
