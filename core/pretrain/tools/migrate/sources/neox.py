"""GPT-NeoX's YAML files, merged as GPT-NeoX merges them, but for a name with two values.

`NeoXArgs.from_ymls` (megatron/neox_arguments/arguments.py) reads "a-b" as "a_b".
"""

from __future__ import annotations

import argparse
import posixpath
from typing import TYPE_CHECKING, Any, NoReturn

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting
from pretrain.tools.migrate.sources.files import Launch, MigrateSource, read_text
from pretrain.tools.migrate.sources.yaml_files import read_block

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.tools.migrate.setting import Word


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


def read_neox(paths: Sequence[Path]) -> MigrateSource:
    """Read the files of one training.

    Returns:
        A source whose settings have GPT-NeoX's names, with underscores; an object such as "optimizer" is a `Block`.
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
    return MigrateSource(name, "neox", program="train.py", settings=settings, launch=launch_of(settings))


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


_ALL, _EACH, _NODES, _HOSTS = "global_num_gpus", "num_gpus", "num_nodes", "hostfile"


def launch_of(settings: Mapping[str, Setting]) -> Launch | None:
    """Return the launch that settings state; None if they state none.

    Devices of a node alone are not counted as processes: the number of nodes is then that of a list of hosts.

    Args:
        settings: by name, with underscores.
    """
    stated = [settings[name] for name in (_ALL, _EACH, _NODES, _HOSTS) if _is_said(settings, name)]
    place = next((setting.place for setting in stated if setting.place is not None), None)
    if place is None:
        return None
    nproc, nnodes = _processes(_count(settings, _ALL), _count(settings, _EACH), _count(settings, _NODES))
    hosts = settings[_HOSTS].value if _is_said(settings, _HOSTS) else ""
    return Launch(place, nproc, nnodes, hosts)


def _processes(every: int | None, each: int | None, nodes: int | None) -> tuple[int | None, int | None]:
    """Return the processes of a node, and the nodes, where two of the three counts tell both."""
    if each and nodes:
        return each, nodes
    if every and nodes and every % nodes == 0:
        return every // nodes, nodes
    if every and each and every % each == 0:
        return each, every // each
    return None, nodes


def _is_said(settings: Mapping[str, Setting], name: str) -> bool:
    if name == _HOSTS:
        return name in settings and isinstance(settings[name].value, str) and bool(settings[name].value)
    return _count(settings, name) is not None


def _count(settings: Mapping[str, Setting], name: str) -> int | None:
    """Return a count; GPT-NeoX's -1 is none."""
    value = settings[name].value if name in settings else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


_NOT_SETTINGS = {"user_script", "conf_dir", "conf_file"}


def neox_command(words: Sequence[Word]) -> list[str]:
    """Return the files of settings that a command names, relative to the directory that it runs in.

    Args:
        words: the command from deepy.py on, or from train.py on.
    """
    given = _parse(words)
    return [posixpath.join(given.conf_dir or "", _with_ending(name)) for name in given.conf_file]


def neox_options(words: Sequence[Word]) -> dict[str, Setting]:
    """Return the settings that the command itself gives, which win over those of the files: "hostfile"."""
    given = {name: value for name, value in vars(_parse(words)).items() if value is not None}
    renamed = {"autotuning_run" if name == "autotuning" else name: value for name, value in given.items()}
    place = words[0].place if words else None
    return {
        name: Setting(name, value, f"--{name}", place) for name, value in renamed.items() if name not in _NOT_SETTINGS
    }


def _with_ending(name: str) -> str:
    return name if name.endswith((".yml", ".json")) else f"{name}.yml"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise MigrateError(message)


def _parse(words: Sequence[Word]) -> argparse.Namespace:
    unknown = next((asked for word in words for asked in word.asked), None)
    if unknown is not None:
        msg = f"{unknown.place}: {unknown.name} is not known ({unknown.why}).\nGive --define {unknown.name}=VALUE."
        raise MigrateError(msg)
    texts = [word.text for word in words]
    if texts and posixpath.basename(texts[0]) == "deepy.py":
        texts = texts[1:]
    try:
        return _parser().parse_args(texts)
    except MigrateError as error:
        place = f"{words[0].place}: " if words else ""
        msg = f"{place}this does not start GPT-NeoX: {error}.\nIt is started by: deepy.py train.py -d DIR FILE.yml ..."
        raise MigrateError(msg) from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("user_script")
    parser.add_argument("--conf_dir", "-d")
    parser.add_argument("conf_file", nargs="+")
    for name in ("wandb_group", "wandb_run_name", "wandb_team", "eval_results_prefix"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--eval_tasks", nargs="+")
    parser.add_argument("--iteration", type=int)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--sample_input_file")
    parser.add_argument("-o", "--sample_output_file")
    parser.add_argument("--autotuning", choices=("tune", "run"))
    return parser
