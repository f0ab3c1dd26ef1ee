"""GPT-NeoX's YAML files, merged as GPT-NeoX merges them, but for a name with two values.

`NeoXArgs.from_ymls` (megatron/neox_arguments/arguments.py) reads "a-b" as "a_b".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting
from pretrain.tools.migrate.sources.neox_launch import launch_of
from pretrain.tools.migrate.sources.neox_yaml import read_block
from pretrain.tools.migrate.sources.source import Source
from pretrain.tools.migrate.sources.source_text import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_OWN = {
    "attention_config",
    "checkpoint_factor",
    "gpt_j_residual",
    "lr_decay_style",
    "max_position_embeddings",
    "model_parallel_size",
    "no_weight_tying",
    "pipe_parallel_size",
    "pos_emb",
    "rotary_pct",
    "scaled_upper_triang_masked_softmax_fusion",
    "tokenizer_type",
    "train_iters",
    "train_micro_batch_size_per_gpu",
    "vocab_file",
}
"""Names at the top of a file of GPT-NeoX; elsewhere they are in sections, or called otherwise."""

_DATA = {"data_path", "train_data_paths", "merge_file", "save", "load", "tensorboard_dir", "log_dir", "hostfile"}
"""Names of the files beside it, such as configs/local_setup.yml."""

_NOT_ITS = {"model", "train", "language_model", "model_parallel"}
"""Sections of a recipe, and of Megatron-LM's --yaml-cfg."""


def recognize(data: Mapping[Any, Any]) -> bool:
    """Return whether the content of a YAML file is GPT-NeoX's, as against a recipe or Megatron-LM's --yaml-cfg.

    Args:
        data: its top level.
    """
    names = {str(key).replace("-", "_") for key in data}
    if any(isinstance(data.get(section), dict) for section in _NOT_ITS):
        return False
    return bool(names & _OWN) or len(names & _DATA) > 1 or any("-" in str(key) for key in data if names & _DATA)


def read_neox(paths: Sequence[Path]) -> Source:
    """Read the files of one training.

    Returns:
        A source whose settings have GPT-NeoX's names, with underscores; an object such as "optimizer" is a `Block`.

    Raises:
        MigrateError: a file cannot be read, is not YAML, or gives a name that it or another file gives too.
    """
    settings: dict[str, Setting] = {}
    for path in paths:
        block = read_block(_text(path), str(path))
        for key, value in block.items():
            name, place = key.replace("-", "_"), block.places[key]
            if name in settings:
                raise MigrateError(_twice(Setting(name, value, key, place), settings[name]))
            settings[name] = Setting(name, value, key, place)
    name = " ".join(str(path) for path in paths)
    return Source(name, "neox", program="train.py", settings=settings, launch=launch_of(settings))


def _twice(later: Setting, earlier: Setting) -> str:
    both = later.written if later.written == earlier.written else f"{later.written} (written {earlier.written} there)"
    return (
        f"{later.place}: {both} is given in {earlier.place} too.\n"
        "A name has one value, and a-b and a_b are one name. Remove one of them."
    )


def _text(path: Path) -> str:
    content = read_text(str(path))
    if content.is_large:
        msg = f"{path}: this is too large for a file of settings.\nGive GPT-NeoX's YAML files."
        raise MigrateError(msg)
    return content.text
