"""Commands of pretrain that take the place of a source's launcher and of its preprocessing."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Ignored, Launched, NoEffect, NotSupported, Replaced
from pretrain.tools.migrate.megatron.meanings import BUILD_MEANINGS
from pretrain.tools.migrate.report import NOT_TAKEN, ReportLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Word
    from pretrain.tools.migrate.sources.files import Launch

_ONE_KEY = {"json_keys", "jsonl_keys"}


def run_command(recipe: str, launch: Launch | None) -> str:
    """Return the command that trains a recipe on as many processes as a launcher starts; a hostfile says how many."""
    words = ["pretrain", "run", recipe]
    if launch is not None and launch.hostfile:
        return shlex.join([*words, "--hostfile", launch.hostfile])
    if launch is not None and launch.nproc is not None:
        words += ["--nproc", str(launch.nproc)]
    if launch is not None and (launch.nnodes or 1) > 1:
        words += ["--nnodes", str(launch.nnodes), "--rdzv", "HOST:29500"]
    return shlex.join(words)


def notices_of(launch: Launch | None) -> list[str]:
    """Return a notice on a launcher that takes only some hosts of its hostfile."""
    if launch is None or not launch.hostfile or launch.nnodes is None:
        return []
    return [f"{launch.place}: {launch.nnodes} nodes of {launch.hostfile} are meant; pretrain takes all that it lists"]


def build_command(arguments: Sequence[Word]) -> tuple[str, list[ReportLine]]:
    """Return the `pretrain data build` command for arguments of preprocess_data.py, and what became of each."""
    flags = list(_flags(arguments))
    tokenizer = next((values for name, _, values in flags if name == "tokenizer_type"), [])
    is_file = any(value.startswith(("HF", "HuggingFace", "Pretrained")) for value in tokenizer)
    words, outcomes = ["pretrain", "data", "build"], []
    for name, written, values in flags:
        meaning = BUILD_MEANINGS.get(name)
        if meaning is None:
            shown = " ".join((written.text, *values))
            outcomes.append(ReportLine("not known", shown, NOT_TAKEN, written.place))
        elif name in _ONE_KEY and len(values) > 1:
            change = f"a build takes one key; the first, {values[0]}, is here: build the others one after the other"
            words += ["--json-key", values[0]]
            outcomes.append(ReportLine("not supported", written.text, change, written.place))
        elif isinstance(meaning, Launched) and " " not in meaning.option:
            option = "--tokenizer-file" if is_file and meaning.option == "--vocab-file" else meaning.option
            words += [option, *values]
            outcomes.append(
                ReportLine("carried over", written.text, f"of pretrain data build: {option}", written.place)
            )
        else:
            outcomes.append(_outcome(meaning, written))
    return shlex.join(words), outcomes


def _flags(arguments: Sequence[Word]) -> Iterator[tuple[str, Word, list[str]]]:
    """Yield each flag by its name, as it is written, and its values; the beginning of a flag is enough for argparse."""
    position = 0
    while position < len(arguments):
        written, equals, value = arguments[position].text.partition("=")
        values = [value] * bool(equals)
        start, position = position, position + 1
        while position < len(arguments) and not arguments[position].text.startswith("--"):
            values.append(_shown(arguments[position]))
            position += 1
        yield _name(written), replace(arguments[start], text=written), values


def _name(written: str) -> str:
    """Return the flag that a text is, or that alone begins so."""
    name = written.lstrip("-").replace("-", "_")
    near = [known for known in BUILD_MEANINGS if known.startswith(name)]
    is_short = name not in BUILD_MEANINGS and len({BUILD_MEANINGS[known] for known in near}) == 1
    return near[0] if is_short else name


def _shown(word: Word) -> str:
    """Return a value; one that is not known stays as the source has it."""
    return word.asked[0].why if word.asked else word.text


def _outcome(meaning: Meaning, written: Word) -> ReportLine:
    if isinstance(meaning, NotSupported):
        return ReportLine("not supported", written.text, meaning.change, written.place)
    if isinstance(meaning, Replaced):
        return ReportLine("replaced", written.text, meaning.by, written.place)
    if isinstance(meaning, Launched):
        return ReportLine("replaced", written.text, f"of pretrain data build: {meaning.option}", written.place)
    why = meaning.why if isinstance(meaning, NoEffect | Ignored) else "of the model"
    return ReportLine("no effect", written.text, why, written.place)
