"""GPT-NeoX's YAML files, merged as GPT-NeoX merges them, but for a name with two values."""

# `NeoXArgs.from_ymls` (megatron/neox_arguments/arguments.py) reads "a-b" as "a_b".

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
    *("attention_config", "checkpoint_factor", "gpt_j_residual", "lr_decay_style", "max_position_embeddings"),
    *("model_parallel_size", "no_weight_tying", "pipe_parallel_size", "pos_emb", "rotary_pct", "tokenizer_type"),
    *("scaled_upper_triang_masked_softmax_fusion", "train_iters", "train_micro_batch_size_per_gpu", "vocab_file"),
}
"""Names at the top of a file of GPT-NeoX; elsewhere they are in sections, or called otherwise."""

_DATA = {"data_path", "train_data_paths", "merge_file", "save", "load", "tensorboard_dir", "log_dir", "hostfile"}
"""Names of the files beside it, such as configs/local_setup.yml."""

_NOT_ITS = {"model", "train", "language_model", "model_parallel"}
"""Sections of a recipe, and of Megatron-LM's --yaml-cfg."""


def recognize(data: Mapping[Any, Any]) -> bool:
    """Return whether the content of a YAML file is GPT-NeoX's, as against a recipe or Megatron-LM's --yaml-cfg."""
    names = {str(key).replace("-", "_") for key in data}
    if any(isinstance(data.get(section), dict) for section in _NOT_ITS):
        return False
    return bool(names & _OWN) or len(names & _DATA) > 1 or any("-" in str(key) for key in data if names & _DATA)


def read_neox(paths: Sequence[Path]) -> MigrateSource:
    """Read the files of one training."""
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


def launch_of(settings: Mapping[str, Setting]) -> Launch | None:
    """Return the launch that settings state; None if they state none."""
    # Devices of a node alone are not counted as processes: the number of nodes is then that of a list of hosts.
    counts = {name: _count(settings, name) for name in ("global_num_gpus", "num_gpus", "num_nodes")}
    hostfile = settings["hostfile"].value if "hostfile" in settings else None
    hosts = hostfile if isinstance(hostfile, str) else ""
    stated = [*(name for name, count in counts.items() if count), *["hostfile"] * bool(hosts)]
    place = next((settings[name].place for name in stated if settings[name].place is not None), None)
    if place is None:
        return None
    nproc, nnodes = _processes(*counts.values())
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


def _count(settings: Mapping[str, Setting], name: str) -> int | None:
    """Return a count; GPT-NeoX's -1 is none."""
    value = settings[name].value if name in settings else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def neox_command(words: Sequence[Word]) -> list[str]:
    """Return the files of settings that a command names, relative to the directory that it runs in."""
    given = _parse(words)
    names = (name if name.endswith((".yml", ".json")) else f"{name}.yml" for name in given.conf_file)
    return [posixpath.join(given.conf_dir or "", name) for name in names]


def neox_options(words: Sequence[Word]) -> dict[str, Setting]:
    """Return the settings that the command itself gives, which win over those of the files: "hostfile"."""
    place = words[0].place if words else None
    return {
        name: Setting(name, value, f"--{name}", place)
        for name, value in vars(_parse(words)).items()
        if value is not None and name not in {"user_script", "conf_dir", "conf_file"}
    }


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
    parser.add_argument("--autotuning", dest="autotuning_run", choices=("tune", "run"))
    return parser
