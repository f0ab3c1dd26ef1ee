"""Arguments with which Megatron-LM's pretrain_gpt.py trains what a recipe says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.keys import walk
from pretrain.recipe.recipe import Recipe
from pretrain.recipe.section import Section
from pretrain.recipe.shown import shown
from pretrain.tools.migrate.to_megatron import layout, model
from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, answer_of, single_flags, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from pretrain.tools.migrate.to_megatron.flags import Function, Words


FUNCTIONS: Mapping[str, Function] = {
    **model.FUNCTIONS,
    **model.TEXT_FUNCTIONS,
    **layout.LENGTH_FUNCTIONS,
    **layout.FUNCTIONS,
}
"""Functions by the key whose flags they return, for keys that one flag alone does not give."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of pretrain_gpt.py.

    Attributes:
        words: flags and values.
        text: the same for a shell, one flag with its values a line.
        left_out: for each key that has no flag, or whose flag says less: "section.key=value: what changes.".
    """

    words: tuple[str, ...]
    text: str
    left_out: tuple[str, ...]


def arguments_of(recipe: Recipe) -> Arguments:
    """Return the arguments with which today's Megatron-LM trains the same model.

    A flag is written where Megatron-LM's default is not the recipe's value, or where it has none. Keys without effect
    in this recipe are passed over.
    """
    idle = frozenset(without_effect(recipe))
    flags: list[Words] = []
    left_out: list[str] = []
    for key, field in walk(Recipe):
        answer = _answer(recipe, key, field, idle)
        flags += answer.flags
        if answer.change:
            left_out.append(f"{key}{_value(recipe, key)}: {answer.change}.")
    words = tuple(word for flag in flags for word in flag)
    return Arguments(words, " \\\n".join(shlex.join(flag) for flag in flags) + "\n", tuple(left_out))


def _answer(recipe: Recipe, key: str, field: FieldInfo, idle: frozenset[str]) -> Answer:
    if key in FUNCTIONS:
        return FUNCTIONS[key](recipe)
    if any(around in idle for around in _with_sections(key)):
        return NOTHING
    if key in WITHOUT_FLAG:
        return NOTHING if _is_default(value_of(recipe, key), field) else Answer(change=WITHOUT_FLAG[key])
    name = single_flags().get(key)
    return NOTHING if name is None else answer_of(recipe, key, name)


def _value(recipe: Recipe, key: str) -> str:
    """Return "=value" as an override has it; nothing for a whole section."""
    value = value_of(recipe, key)
    if isinstance(value, Section):
        return ""
    return f"={str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else shown(value)}"


def _is_default(value: Any, field: FieldInfo) -> bool:
    return bool(value == field.get_default())


def _with_sections(key: str) -> Iterator[str]:
    """Yield a key and the sections around it."""
    while key:
        yield key
        key = key.rpartition(".")[0]


_ROPE = "rope is scaled there with the numbers of Llama 3.1: low_freq_factor 1, high_freq_factor 4 and 8192 positions"
_STARTS = (
    "weights start with the standard deviation --init-method-std, those of last layers with it / sqrt(2 num_layers)"
)
_KERNEL = "Megatron-LM and Transformer Engine choose their kernels themselves"
_DEEPSPEED = "it is DeepSpeed's: memory and speed can differ, the results do not"
_SPIKE = "a loss that rises suddenly is not answered"
_DEVICE = "it stays on the device and takes more of its memory"

WITHOUT_FLAG: Mapping[str, str] = {
    "model.rope_low_freq_factor": _ROPE,
    "model.rope_high_freq_factor": _ROPE,
    "model.original_max_position_embeddings": _ROPE,
    "model.parallel_residual": "attention and MLP come one after the other: it is another model",
    "model.embedding_layernorm": "the embedding's output is not normalized: it is another model",
    "model.init_method": _STARTS,
    "model.output_layer_init_method": _STARTS,
    "tokenizer.vocab_size": "no tokenizer is trained: its file has to be there",
    "data.corpus": "no token file is built: it has to be there, pretrain data build makes it",
    "data.index": "samples come in the order of Megatron-LM's index files, which is another",
    "train.kill_switch_path": "no file ends the training; --exit-signal-handler saves and exits at SIGTERM",
    "train.loss_spike.threshold": _SPIKE,
    "train.loss_spike.action": _SPIKE,
    "train.loss_spike.leave_out": _SPIKE,
    "logging.hang_after_seconds": "a rank that hangs ends the run when its collectives time out, without a report",
    "optimizer.name": "weight decay is decoupled from the gradient: Megatron-LM's adam is adamw",
    "checkpoint.keep": "all checkpoints are kept",
    "evaluation.target_loss": "no loss to reach is checked at the end",
    "evaluation.prompt": "no text is continued at the end",
    "evaluation.prompt_tokens": "no text is continued at the end",
    "engine.deepspeed_config": _DEEPSPEED,
    "engine.zero.offload_optimizer.device": _DEVICE,
    "engine.zero.offload_param.device": _DEVICE,
    **dict.fromkeys(
        (
            "engine.zero.contiguous_gradients",
            "engine.zero.reduce_scatter",
            "engine.zero.allgather_bucket_size",
            "engine.zero.round_robin_gradients",
            "engine.zero.sub_group_size",
            "engine.zero.stage3_prefetch_bucket_size",
            "engine.zero.stage3_param_persistence_threshold",
            "engine.zero.stage3_model_persistence_threshold",
            "engine.zero.stage3_max_live_parameters",
            "engine.zero.stage3_max_reuse_distance",
            "engine.zero.offload_optimizer.nvme_path",
            "engine.zero.offload_optimizer.pin_memory",
            "engine.zero.offload_optimizer.buffer_count",
            "engine.zero.offload_optimizer.fast_init",
            "engine.zero.offload_optimizer.pipeline_read",
            "engine.zero.offload_optimizer.pipeline_write",
            "engine.zero.offload_optimizer.cpu_adam",
            "engine.zero.offload_param.nvme_path",
            "engine.zero.offload_param.pin_memory",
            "engine.zero.offload_param.buffer_count",
            "engine.zero.offload_param.buffer_size",
            "engine.zero.offload_param.max_in_cpu",
        ),
        _DEEPSPEED,
    ),
    **dict.fromkeys(
        (
            "kernels.triangle_block_size",
            "kernels.softmax",
            "kernels.norm",
            "kernels.rotary",
            "kernels.activation",
            "kernels.bias_dropout_add",
            "kernels.cross_entropy",
            "kernels.linear",
            "kernels.optimizer",
            "kernels.collectives",
            "kernels.fallback",
            "kernels.compile",
        ),
        _KERNEL,
    ),
}
"""What changes, a sentence without its period, by "section.key"; of a section for all its keys."""
