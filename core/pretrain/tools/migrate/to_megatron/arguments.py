"""Arguments with which Megatron-LM's pretrain_gpt.py trains what a recipe says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.recipe import Recipe, walk
from pretrain.recipe.section import Section, shown
from pretrain.stores.address import is_address
from pretrain.tools.migrate.to_megatron import layout, model, rope
from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, answer_of, given, single_flags, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from pretrain.tools.migrate.to_megatron.flags import Function, Words


def _optimizer_name(recipe: Recipe) -> Answer:
    match name := recipe.optimizer.own:
        case "adamw":
            return NOTHING
        case "adam":
            return Answer(change="weight decay is decoupled from the gradient: Megatron-LM's adam is adamw")
        case "muon":
            return Answer(change=f"all weights are updated by adamw: {_MUON}")
        case None:
            return Answer(change="all weights are updated by adamw: Megatron-LM does not have it")
        case _:
            assert_never(name)


def _state_dtype(recipe: Recipe, name: str) -> Answer:
    """Return the dtype of a state; the first one that is not fp32 turns on the optimizer that may keep it."""
    section = recipe.optimizer
    dtype = getattr(section, name)
    if dtype == "fp32":
        return NOTHING
    if not layout.use_distributed_optimizer(recipe).flags:
        return Answer(change="it is fp32 without --use-distributed-optimizer, and takes more memory")
    is_first = name == "exp_avg_dtype" or section.exp_avg_dtype == "fp32"
    return Answer((*((given("use_precision_aware_optimizer"),) if is_first else ()), given(name, dtype)))


_MUON = "Megatron-LM's --optimizer muon has flags and defaults of its own, to be set by hand"

FUNCTIONS: Mapping[str, Function] = {
    **model.FUNCTIONS,
    **rope.FUNCTIONS,
    **layout.FUNCTIONS,
    "optimizer.name": _optimizer_name,
    **{f"optimizer.{name}": partial(_state_dtype, name=name) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")},
}
"""Functions by the key whose flags they return, for keys that one flag alone does not give."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of pretrain_gpt.py."""

    words: tuple[str, ...]  # flags and values
    text: str  # the same for a shell, one flag with its values a line
    left_out: tuple[str, ...]  # "section.key=value: what changes." of keys without a flag that says the same


def arguments_of(recipe: Recipe) -> Arguments:
    """Return the arguments with which today's Megatron-LM trains the same model."""
    # A flag is written where Megatron-LM's default is not the recipe's value, or where it has none. Keys without effect
    # in this recipe are passed over.
    idle = frozenset(without_effect(recipe))
    flags: list[Words] = []
    left_out: list[str] = []
    for key, field in walk(Recipe):
        answer = _answer(recipe, key, field, idle)
        flags += answer.flags
        stored = any(is_address(word) for flag in answer.flags for word in flag)
        if change := answer.change or (stored and "a local path is needed: mount the store, or copy what is there"):
            left_out.append(f"{key}{_value(recipe, key)}: {change}.")
    words = tuple(word for flag in flags for word in flag)
    return Arguments(words, " \\\n".join(shlex.join(flag) for flag in flags) + "\n", tuple(left_out))


def _answer(recipe: Recipe, key: str, field: FieldInfo, idle: frozenset[str]) -> Answer:
    if key in FUNCTIONS:
        return FUNCTIONS[key](recipe)
    if any(around in idle for around in _with_sections(key)):
        return NOTHING
    name = single_flags().get(key)
    if name is not None:
        return answer_of(recipe, key, name)
    change = WITHOUT_FLAG.get(key) or next((_SECTIONS[each] for each in _with_sections(key) if each in _SECTIONS), "")
    if not change:
        return NOTHING
    value = value_of(recipe, key)
    is_said = key in WITHOUT_FLAG or not isinstance(value, Section)  # of a section its keys are told
    return NOTHING if value == field.get_default() or not is_said else Answer(change=change)


def _value(recipe: Recipe, key: str) -> str:
    """Return "=value" as an override has it; nothing for a whole section."""
    value = value_of(recipe, key)
    if isinstance(value, Section):
        return ""
    return f"={str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else shown(value)}"


def _with_sections(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key.rpartition(".")[0]


_STARTS = (
    "weights start with the standard deviation --init-method-std, those of last layers with it / sqrt(2 num_layers)"
)
_KERNEL = "Megatron-LM and Transformer Engine choose their kernels themselves"
_DEEPSPEED = "it is DeepSpeed's: memory and speed can differ, the results do not"
_SPIKE = "nothing happens when the loss rises suddenly"
_FP8 = "matmuls are in precision.dtype: Megatron-LM's --fp8-format has other scales, and needs Transformer Engine"
_LOGGERS = "Megatron-LM logs to TensorBoard and Weights & Biases alone"
_DEVICE = "it stays on the device and takes more of its memory"

WITHOUT_FLAG: Mapping[str, str] = {
    "model.rope_low_freq_factor": rope.OF_LLAMA3,
    "model.rope_high_freq_factor": rope.OF_LLAMA3,
    "model.parallel_residual": "attention and MLP come one after the other: it is another model",
    "model.embedding_layernorm": "the embedding's output is not normalized: it is another model",
    "model.init_method": _STARTS,
    "model.output_layer_init_method": _STARTS,
    "tokenizer.vocab_size": "no tokenizer is trained: make its file first",
    "data.corpus": "no token file is built: make it first, with pretrain data build",
    "data.split_by": "a split begins with a document there",
    "data.index": "samples come in another order, that of Megatron-LM's index files",
    "train.kill_switch_path": "no file ends the training; --exit-signal-handler saves and exits at SIGTERM",
    "precision.fp8": _FP8,
    "precision.fp8_wgrad": _FP8,
    "train.loss_spike.threshold": _SPIKE,
    "train.loss_spike.action": _SPIKE,
    "train.loss_spike.leave_out": _SPIKE,
    "logging.hang_after_seconds": "a rank that hangs ends the run when its collectives time out, without a report",
    "logging.logger_options": _LOGGERS,
    "logging.wandb_group": "its run of Weights & Biases belongs to no group",
    **{f"logging.{key}": _LOGGERS for key in ("mlflow_tracking_uri", "mlflow_experiment", "mlflow_run_name")},
    **{
        f"logging.{key}": _LOGGERS
        for key in ("comet_project", "comet_workspace", "comet_experiment_name", "comet_tags")
    },
    "optimizer.options": "they belong to an installed optimizer, which Megatron-LM does not have",
    "optimizer.muon_momentum": _MUON,
    "optimizer.muon_use_nesterov": _MUON,
    "optimizer.muon_num_ns_steps": _MUON,
    "optimizer.muon_scale_mode": _MUON,
    "optimizer.muon_extra_scale_factor": _MUON,
    "checkpoint.keep": "all checkpoints are kept",
    "checkpoint.local_interval": "its --non-persistent-ckpt-type local needs a library that it does not bring",
    "checkpoint.local_dir": "it belongs to checkpoint.local_interval",
    "evaluation.target_loss": "the final loss is not checked",
    "evaluation.prompt": "no text is generated at the end",
    "evaluation.prompt_tokens": "no text is generated at the end",
    **dict.fromkeys(
        (f"evaluation.tasks{part}" for part in ("", "_interval", "_include_path", "_num_fewshot", "_limit")),
        "tasks of lm-evaluation-harness are evaluated by other programs, on the checkpoint",
    ),
    "engine.deepspeed_config": _DEEPSPEED,
    "engine.zero.offload_optimizer.device": _DEVICE,
    "engine.zero.offload_param.device": _DEVICE,
}
"""What changes, a sentence without its period, by "section.key"."""

_SECTIONS = {"engine.zero": _DEEPSPEED, "kernels": _KERNEL}
"""The same for all other keys of a section."""
