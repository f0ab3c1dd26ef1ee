"""GPT-NeoX's settings of checkpoints, evaluation and logs (NeoXArgsTraining, NeoXArgsLogging)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.neox.data import has_own_evaluation_text
from pretrain.tools.migrate.neox.objects import stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, note_on_start, save, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_ONLINE = "metrics go to metrics.jsonl and TensorBoard, and to no service"
_RUN_DIR = "in the run directory: --run-dir"
_SAVING = "checkpoint_factor and checkpoint_scale decide together"

OUTPUTS: dict[str, Meaning] = {
    "save": Mapped("checkpoint.save", how="false without it, because GPT-NeoX saves nothing then"),
    "load": Mapped("checkpoint.load"),
    "finetune": Mapped("checkpoint.finetune", how="with load"),
    "checkpoint_factor": Mapped("checkpoint.save_interval", how=_SAVING),
    "checkpoint_scale": Mapped("checkpoint.save_interval", how=_SAVING),
    "keep_last_n_checkpoints": Mapped("checkpoint.keep"),
    "extra_save_iters": NotSupported(
        "nothing is saved between multiples of checkpoint.save_interval", unless=(None, [])
    ),
    "save_iters": Ignored("GPT-NeoX works it out itself"),
    "s3_path": NotSupported("checkpoints stay in their folder", unless=(None,)),
    "s3_chunk_size": Ignored("it belongs to s3_path"),
    "checkpoint_validation_with_forward_pass": NoEffect("checksums say whether a checkpoint is intact"),
    "no_save_optim": NoEffect("a checkpoint is always complete"),
    "no_save_rng": NoEffect("a checkpoint is always complete"),
    "no_load_optim": NotSupported(
        "the optimizer's state is loaded; GPT-NeoX trains nothing with it, which is for generate.py and eval.py",
        unless=(False,),
    ),
    "no_load_rng": NoEffect("generators are restored if the layout is the checkpoint's, else seeded again"),
    "config_files": Ignored("GPT-NeoX keeps its files there"),
    "eval_interval": Mapped("evaluation.interval", how="0 where there is no text to evaluate on"),
    "eval_iters": Mapped("evaluation.iters", how="over 0"),
    "char_level_ppl": NotSupported("perplexity is that of tokens", unless=(False,)),
    "log_interval": Mapped("logging.log_interval"),
    "wall_clock_breakdown": Mapped("logging.log_timers"),
    "log_param_norm": Mapped("logging.log_params_norm", note="one norm of all weights"),
    "log_grad_pct_zeros": Mapped("logging.log_num_zeros_in_grad", note="their number in all gradients together"),
    "log_grad_norm": NoEffect("it is always measured"),
    "log_optimizer_states": NotSupported("norms of the optimizer's state are not measured", unless=(False,)),
    "log_gradient_noise_scale": NotSupported("the gradient noise scale is not measured", unless=(False,)),
    "gradient_noise_scale_n_batches": Ignored("it belongs to log_gradient_noise_scale"),
    "gradient_noise_scale_cpu_offload": Ignored("it belongs to log_gradient_noise_scale"),
    "peak_theoretical_tflops": NoEffect("the device's plugin says its FLOP/s"),
    "steps_per_print": NoEffect("DeepSpeed's own log is off; logging.log_interval says how often metrics are shown"),
    "tensorboard_dir": Replaced(f"TensorBoard's files are {_RUN_DIR}"),
    "tensorboard_writer": Ignored("GPT-NeoX sets it itself"),
    "log_dir": Replaced(f"logs are {_RUN_DIR}"),
    "git_hash": Replaced("environment.json of the run directory has the commit"),
    "use_wandb": NotSupported(_ONLINE, unless=(False, None)),
    "use_comet": NotSupported(_ONLINE, unless=(False, None)),
    **alike(
        Ignored("it belongs to use_wandb"),
        """wandb_group wandb_run_name wandb_team wandb_project wandb_host wandb_init_all_ranks""",
    ),
    **alike(
        Ignored("it belongs to use_comet"),
        """comet_workspace comet_project comet_experiment_name comet_tags comet_others comet_experiment""",
    ),
    **dict.fromkeys(("profile", "memory_profiling"), NotSupported("no profile is taken", unless=(False,))),
    **dict.fromkeys(("profile_step_start", "profile_step_stop"), Ignored("it belongs to profile")),
    "memory_profiling_path": Ignored("it belongs to memory_profiling"),
}


_FACTOR, _SCALE = "checkpoint_factor", "checkpoint_scale"


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from, which may be the empty one that the run itself fills."""
    given = settings.value("load")
    if given is None:
        return None
    return Derived(given, ("load",), note_on_start(settings, given))


def finetune(settings: Settings) -> Derived | None:
    """Return whether only the weights are loaded."""
    if not settings.value("finetune"):
        return None
    if settings.value("load") is None:
        return unused("finetune", "nothing is loaded")
    return Derived(True, ("finetune",))


def save_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two checkpoints, which are as many every time here."""
    if settings.value(_FACTOR) is None:
        return None
    if settings.value("save") is None:
        return unused(_FACTOR, "without save nothing is saved")
    if settings.value(_SCALE, "linear") != "linear":
        change = "checkpoints are saved at multiples of a number, not at its powers; here only at the end"
        return in_place(None, _FACTOR, change)
    return Derived(whole(settings, _FACTOR, 0), (_FACTOR, *stated(settings, _SCALE)))


def keep(settings: Settings) -> Derived | None:
    """Return the number of latest checkpoints that are kept."""
    name = "keep_last_n_checkpoints"
    given = settings.value(name)
    if given is None or settings.value("save") is not None:
        return None if given is None else Derived(given, (name,))
    return unused(name, "without save nothing is saved")


def evaluation_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two evaluations: 0 without iterations of one, or text that is held out."""
    if has_own_evaluation_text(settings):
        change = "text for evaluation is a share of the training files here; valid_data_paths is not read"
        return Derived(0, ("train_data_paths",), lost=(("eval_interval", change),))
    if settings.value("eval_iters") == 0:
        return Derived(0, ("eval_iters",))
    return taken(settings, "eval_interval")


def evaluation_iters(settings: Settings) -> Derived | None:
    """Return the global batches of an evaluation."""
    found = evaluation_interval(settings)
    if found is not None and found.value == 0:
        return unused("eval_iters", "nothing is evaluated") if settings.value("eval_iters") else None
    given = settings.value("eval_iters")
    return Derived(given, ("eval_iters",)) if given else None


FUNCTIONS: Mapping[str, Function] = {
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.finetune": finetune,
    "checkpoint.save_interval": save_interval,
    "checkpoint.keep": keep,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": evaluation_iters,
}
"""By key of the recipe."""
