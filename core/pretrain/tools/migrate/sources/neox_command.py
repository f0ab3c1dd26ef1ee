"""Command lines that start GPT-NeoX: `deepy.py train.py -d configs 20B.yml local_setup.yml`.

Options are those of `NeoXArgs.consume_deepy_args` (megatron/neox_arguments/arguments.py).
"""

from __future__ import annotations

import argparse
import posixpath
from typing import TYPE_CHECKING, NoReturn

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.setting import Word

_NOT_SETTINGS = {"user_script", "conf_dir", "conf_file"}


def neox_command(words: Sequence[Word]) -> list[str]:
    """Return the files of settings that a command names, relative to the directory that it runs in.

    Args:
        words: the command from deepy.py on, or from train.py on.

    Raises:
        MigrateError: a word is not known, or the command names no file.
    """
    given = _parse(words)
    return [posixpath.join(given.conf_dir or "", _with_ending(name)) for name in given.conf_file]


def neox_options(words: Sequence[Word]) -> dict[str, Setting]:
    """Return the settings that the command itself gives, which win over those of the files: "hostfile".

    Raises:
        MigrateError: as `neox_command`.
    """
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
