"""Names in logs and YAML files that are no flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.migrate.meanings.meaning import Meaning
    from pretrain.tools.migrate.programs.program import Program
    from pretrain.tools.migrate.setting import Setting

_WORKED_OUT = {
    "consumed_train_samples",
    "consumed_train_tokens",
    "consumed_valid_samples",
    "curr_iteration",
    "data_parallel_size",
    "ds_pipeline_enabled",
    "iteration",
    "padded_vocab_size",
    "params_dtype",
    "rank",
    "transformer_pipeline_model_parallel_size",
    "use_dist_ckpt",
    "variable_seq_lengths",
    "virtual_pipeline_model_parallel_size",
    "world_size",
}
"""Names that validate_args and initialize_megatron add to the flags; a log of Megatron-LM lists them too."""


def without_worked_out(
    stated: Mapping[str, Setting], program: Program, meaning: Callable[[str], Meaning | None]
) -> tuple[dict[str, Setting], list[str], list[Outcome]]:
    """Return the settings that have a meaning, a notice on those that the program worked out, and unknown ones.

    A YAML file may have settings of megatron-core that are no flags.
    """
    others = [setting for name, setting in stated.items() if name not in program.flags and setting.value is not None]
    worked_out = [setting.name for setting in others if setting.name in _WORKED_OUT]
    left = [setting for setting in others if setting.name not in _WORKED_OUT]
    known = {setting.name: setting for setting in left if meaning(setting.name) is not None}
    text = f"{program.title} has no such flag: nothing is taken over"
    unknown = [
        Outcome("not supported", setting.written, text, setting.place) for setting in left if setting.name not in known
    ]
    kept = {name: setting for name, setting in stated.items() if name in program.flags}
    notice = f"no flags, but worked out by the program itself: {', '.join(worked_out)}"
    return kept | known, [notice] * bool(worked_out), unknown
