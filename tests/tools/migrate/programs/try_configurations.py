"""Migration of every configuration of the public repositories, and the table of what comes of each.

    python tests/tools/migrate/programs/try_configurations.py Megatron-LM=CHECKOUT gpt-neox=CHECKOUT ... [--write]

A CHECKOUT is a folder of the repository's files. Without --write the table beside this file is compared with what
comes out now. A value that a script leaves open is defined as 1, one that a condition looks at as empty or 0; a
DeepSpeed file that it makes with other programs has the stage of --zero-stage alone; a key that a file leaves out is
set to a small one. Counted are the settings that a configuration states.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import get_args

from pretrain.errors import PretrainError
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.report import Fate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources

TABLE = Path(__file__).with_name("configurations.tsv")
FATES = get_args(Fate)
COLUMNS = ("configuration", "taken for", *FATES, "not migrated because")

_TRIES = 12
_DEVICES = 64
_KEYS = {
    "model.num_layers": "2",
    "model.hidden_size": "64",
    "model.num_attention_heads": "4",
    "model.seq_length": "64",
    "tokenizer.type": "bytes",
    "train.micro_batch_size": "1",
    "train.global_batch_size": str(_DEVICES),
    "train.train_iters": "1000",
    "optimizer.lr": "1e-4",
    "data.path": "data/tokens",
    "tokenizer.vocab_file": "data/vocab.json",
    "tokenizer.merge_file": "data/merges.txt",
    "tokenizer.file": "data/tokenizer.json",
}
_CONDITION = re.compile(r"depends on .*?\$\{?(\w+)")
_STAGE = re.compile(r"--zero-stage (\d), but ")
_NUMBERS = re.compile(r"depends on .* -(?:eq|ne|gt|ge|lt|le) ")
_MISSING = re.compile(r"((?:model|tokenizer|train|optimizer|data)\.\w+)")


def row(name: str, path: Path) -> tuple[str, ...]:
    """Return the row of one configuration."""
    defined: dict[str, str] = {}
    overrides: dict[str, str] = {}
    files: list[str] = []
    for _ in range(_TRIES):
        try:
            sources = read_sources([str(path), *files], defined)
            found = migrate(
                sources, MigrateOptions(devices=_DEVICES, overrides=tuple(f"{k}={v}" for k, v in overrides.items()))
            )
        except PretrainError as error:
            if stage := _wanted_stage(str(error), files):
                files[:] = [_deepspeed_file(stage)]
            elif not _filled_in(str(error), defined, overrides):
                return name, "", *[""] * len(FATES), _reason(str(error), path)
            continue
        counted = Counter(outcome.fate for outcome in found.outcomes)
        return name, found.taken_for.partition(",")[0], *(str(counted[fate]) for fate in FATES), ""
    return name, "", *[""] * len(FATES), "more and more values are asked for"


def _wanted_stage(error: str, files: list[str]) -> str:
    """Return the stage of ZeRO that a DeepSpeed file has to have; empty if an error does not ask for one."""
    if "one more source" in error and not files:
        return "0"
    found = _STAGE.search(error)
    return found[1] if found and files else ""


def _deepspeed_file(stage: str) -> str:
    """Write a DeepSpeed file, and return its path."""
    path = Path(tempfile.gettempdir()) / f"deepspeed_stage_{stage}.json"
    path.write_text(f'{{"zero_optimization": {{"stage": {stage}}}}}\n', encoding="utf-8")
    return str(path)


def _filled_in(error: str, defined: dict[str, str], overrides: dict[str, str]) -> bool:
    """Define what an error asks for; say whether it asked for something new."""
    words = shlex.split(error.splitlines()[-1], posix=True) if "--define" in error else []
    named = [after.removesuffix(",").partition("=") for word, after in pairwise(words) if word == "--define"]
    empty = "0" if _NUMBERS.search(error) else ""
    conditions = [(name, "=", empty) for name in _CONDITION.findall(error) if name not in defined]
    named = conditions or named
    asked = {name: value and (value if conditions else "1") for name, _, value in named if name not in defined}
    defined.update(asked)
    missing = {key for line in error.splitlines() if "required" in line for key in _MISSING.findall(line)[:1]}
    missing = {key for key in missing if key in _KEYS} - overrides.keys()
    overrides.update({key: _KEYS[key] for key in missing})
    return bool(asked or missing)


def _reason(error: str, path: Path) -> str:
    """Return the first line of an error in our own words: without what it quotes of the configuration."""
    line = error.splitlines()[0].replace(str(path), path.name)
    return re.sub(r"^\S+?(:\d+)?: ", "", line)


def configurations(name: str, checkout: Path) -> list[tuple[str, Path]]:
    """Return the configurations of a repository by name: its shell scripts, and its YAML files of settings."""
    scripts = [path for path in checkout.rglob("*.sh") if "tests" not in path.relative_to(checkout).parts]
    files = [path for path in checkout.rglob("*.y*ml") if _is_configuration(path.relative_to(checkout))]
    return [(f"{name}/{path.relative_to(checkout)}", path) for path in sorted([*scripts, *files])]


def _is_configuration(path: Path) -> bool:
    return path.parts[0] == "configs" or path.name.startswith("gpt_config")


def main(arguments: list[str]) -> int:
    """Compare the table with what comes out now, or write it."""
    rows = [COLUMNS]
    for argument in arguments:
        if argument != "--write":
            name, _, checkout = argument.partition("=")
            rows += [row(*found) for found in configurations(name, Path(checkout))]
    text = "".join("\t".join(cells) + "\n" for cells in rows)
    if "--write" in arguments:
        TABLE.write_text(text, encoding="utf-8")
        return 0
    same = TABLE.read_text(encoding="utf-8") == text
    print("the table is as it was" if same else "the table differs: give --write and look at the difference")
    return not same


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
