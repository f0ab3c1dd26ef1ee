"""Recognition of a source by its content."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.key_tables import BLOCKS, REMOVED, SWITCHED
from pretrain.recipe.deepspeed.translate import KEYS
from pretrain.recipe.recipe import keys_of_recipe
from pretrain.tools.migrate.sources.files import MigrateSource, read_deepspeed, read_text
from pretrain.tools.migrate.sources.log import has_arguments, read_log
from pretrain.tools.migrate.sources.script import names_read, read_shell, split_words
from pretrain.tools.migrate.sources.yaml_files import (
    is_megatron_yaml,
    is_neox_yaml,
    read_block,
    read_megatron_yaml,
    read_neox,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RECOGNIZED = (
    "Give a shell script that starts a training, a list of its arguments, its log from the start, a DeepSpeed JSON,\n"
    "a YAML of GPT-NeoX, or one for Megatron-LM's --yaml-cfg."
)
_UNKNOWN = "no program that migrate knows has these settings"
_DEEPSPEED = {path.partition(".")[0] for path in (*KEYS, *SWITCHED, *BLOCKS, *REMOVED)}
"""Keys at the top of a DeepSpeed file; GPT-NeoX has many of them too."""

_PROGRAM = re.compile(r"\.py\b|\b(?:python\d?|torchrun|deepspeed|srun|mpirun|mpiexec)\b")


def read_sources(names: Sequence[str], defined: Mapping[str, str]) -> tuple[MigrateSource, ...]:
    """Read all sources; GPT-NeoX's files become one, as GPT-NeoX merges them."""
    found: dict[str, MigrateSource | MigrateError] = {}
    for name in names:
        try:
            found[name] = read_source(name, defined)
        except MigrateError as error:
            found[name] = error
    files = [name for name, source in found.items() if _is_neox_file(name, source)]
    if files:  # a few settings may be recognized only by the files beside them
        files = [name for name, source in found.items() if name in files or _may_be_settings(name, source)]
    errors = [source for name, source in found.items() if isinstance(source, MigrateError) and name not in files]
    if errors:
        raise errors[0]
    merged = (read_neox([Path(name) for name in files]),) if files else ()
    others = [source for name, source in found.items() if name not in files and not isinstance(source, MigrateError)]
    return (*merged, *others)


def _is_neox_file(name: str, source: MigrateSource | MigrateError) -> bool:
    """Return whether it is a YAML file, and not a script that names some."""
    if isinstance(source, MigrateError) or source.kind != "neox":
        return False
    return all(setting.place is not None and setting.place.source == name for setting in source.settings.values())


def _may_be_settings(name: str, source: MigrateSource | MigrateError) -> bool:
    unknown = isinstance(source, MigrateError) and _UNKNOWN in str(source)
    return unknown and PurePath(name).suffix.lower() in {".yml", ".yaml", ".json"}


def read_source(name: str, defined: Mapping[str, str]) -> MigrateSource:
    """Read a source of any kind; `defined` has variables, and a script's arguments "1", "2", ..."""
    content = read_text(name)
    text = content.text
    if not text.startswith("#!") and re.search(r"^[ \t]*(?:```|~~~)", text, re.MULTILINE):
        msg = f"{name} is a document.\nSave the script or the log in it as a file of its own."
        raise MigrateError(msg)
    if has_arguments(text):
        return read_log(name, text)
    if content.is_large:
        msg = f"{name} is too large, and not a log that begins with its arguments.\n{_RECOGNIZED}"
        raise MigrateError(msg)
    return _settings_file(name, text, defined) or _script_or_list(name, text, defined)


def _settings_file(name: str, text: str, defined: Mapping[str, str]) -> MigrateSource | None:
    if _is_deepspeed(text):
        return read_deepspeed(name, text)
    data = _yaml(name, text)
    if data is None:
        return None
    if is_megatron_yaml(data):
        return replace(read_megatron_yaml(name, text, defined), read_names=names_read(name, text, defined))
    is_part = PurePath(name).suffix in {".yml", ".yaml"} and bool(data.keys() & _DEEPSPEED) and not _is_recipe(data)
    if is_neox_yaml(data) or is_part:  # a part of GPT-NeoX's settings may have DeepSpeed's keys alone
        return replace(read_neox([Path(name)]), name=name)
    if _is_recipe(data):
        msg = f"{name} is already a recipe.\nRun it with: pretrain run {name}"
        raise MigrateError(msg)
    msg = f"{name}: {_UNKNOWN}.\n{_RECOGNIZED}"
    raise MigrateError(msg)


def _is_deepspeed(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(data, dict) or not data.keys() & _DEEPSPEED:
        return False
    return not is_neox_yaml({key: value for key, value in data.items() if key not in _DEEPSPEED})


def _is_recipe(data: Mapping[str, Any]) -> bool:
    sections = {key for key in keys_of_recipe() if "." not in key}
    return bool(data) and data.keys() <= sections and all(isinstance(value, dict) for value in data.values())


def _yaml(name: str, text: str) -> dict[str, Any] | None:
    """Return a mapping of YAML; None for a text that does not look like one."""
    ending = PurePath(name).suffix.lower() in {".yml", ".yaml", ".json"}
    braces = text.lstrip().startswith("{") and re.match(r'\s*\{\s*(?:#[^\n]*\n\s*)*["}]', text)
    if not ending and not braces and not re.match(r"(?:[ \t]*(?:#[^\n]*|---[ \t]*)?\r?\n)*[\w-]+:(?:\s|$)", text):
        return None
    if PurePath(name).suffix.lower() == ".json":
        read_deepspeed(name, text)  # says what is not JSON
    return read_block(text, name)


def _script_or_list(name: str, text: str, defined: Mapping[str, str]) -> MigrateSource:
    lines = [line.strip() for line in text.split("\n")]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if re.match(r"--\w", first):
        words = split_words(name, text, defined)
        return MigrateSource(name, "arguments", words=words, read_names=names_read(name, text, defined))
    shell = text.startswith(("#!", "!/")) or PurePath(name).suffix in {".sh", ".bash", ".slurm", ".sbatch"}
    python = re.match(r"#!.*python|import |from \w+ import", text)
    if python is None and first and (shell or _PROGRAM.search(text)):
        return read_shell(name, text, defined)
    what = "is a Python program" if python else "is not recognized" if first else "has only comments"
    msg = f"{name} {what}.\n{_RECOGNIZED}"
    raise MigrateError(msg)
