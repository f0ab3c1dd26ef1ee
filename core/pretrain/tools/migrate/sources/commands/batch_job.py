"""Options of a Slurm job that a script states in comments."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Place, Word

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = re.compile(r"#SBATCH\s+(.*)")
_SHORT = {"N": "nodes", "n": "ntasks"}
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE",),
}
"""Variables that Slurm sets for a job by its options (sbatch's output environment variables)."""


def batch_options(name: str, text: str) -> dict[str, Word]:
    """Return the options of "#SBATCH" lines that count nodes and tasks.

    Args:
        name: the script, for places.
        text: its content.

    Returns:
        values by an option's long name with underscores.
    """
    options: dict[str, Word] = {}
    for number, line in enumerate(text.split("\n"), 1):
        found = _LINE.match(line.strip())
        if found:
            place = Place(name, number)
            options |= {key: Word(value, place) for key, value in _options(found[1]) if key in _VARIABLES}
    return options


def _options(text: str) -> list[tuple[str, str]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quote in a comment
        return []
    options = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        written, equals, value = word.partition("=")
        if word.startswith("--"):
            options.append((written[2:].replace("-", "_"), value if equals else following))
        elif word.startswith("-") and word[1:2] in _SHORT:
            options.append((_SHORT[word[1]], word[2:] or following))
    return options


def batch_variables(options: Mapping[str, Word], text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that Slurm sets for these options, if the script uses them, and a line for the user each."""
    defined: dict[str, str] = {}
    notices = []
    for option, names in _VARIABLES.items():
        word = options.get(option)
        if word is None or not word.text.isdecimal():
            continue
        for name in names:
            if re.search(rf"\${{?{name}\b", text):
                defined[name] = word.text
                notices.append(f"{word.place}: {name} is taken as {word.text}, which --{option.replace('_', '-')} says")
    return defined, notices
