"""The command of a script that starts the training, and those that build token files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.commands.command_layers import peel
from pretrain.tools.migrate.sources.commands.known_programs import reason_against, role_of
from pretrain.tools.migrate.sources.source import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.tools.migrate.setting import Word
    from pretrain.tools.migrate.sources.commands.command_layers import Peeled

_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_READ = "Read are trainings of GPT: pretrain_gpt.py and pretrain_gpt2.py, and GPT-NeoX's deepy.py train.py."


@dataclass(slots=True)
class Commands:
    """Commands of a script that matter here.

    Attributes:
        trainings: commands of trainings that can be read.
        preprocessing: arguments of each preprocess_data.py.
        others: phrases about other Python programs, with their places.
        unknown: commands whose program is not known.
        seen: names of all programs that are started.
        notices: lines for the user.
    """

    trainings: list[Peeled] = field(default_factory=list)
    preprocessing: list[tuple[Word, ...]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    unknown: list[Word] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def sort_commands(commands: Iterable[Sequence[Word]], batch: Mapping[str, Word]) -> Commands:
    """Sort commands by the programs that they start.

    Args:
        commands: words of each command.
        batch: options that the script's job has, which are defaults of srun's.
    """
    found = Commands()
    for words in commands:
        peeled = peel(words, batch)
        if peeled is not None:
            _sort(found, peeled)
    return found


def _sort(found: Commands, peeled: Peeled) -> None:
    program, place = peeled.words[0], peeled.words[0].place
    if not peeled.program.endswith(".py"):
        if program.asked:
            found.unknown.append(program)
        found.seen.append(_script(peeled) or peeled.program)
        return
    arguments = [word.text for word in peeled.words[1:]]
    role = role_of(peeled.program, arguments)
    if role == "preprocessing":
        found.preprocessing.append(peeled.words[1:])
    elif role == "other":
        found.others.append(f"{place}: {reason_against(peeled.program, arguments)}")
    else:
        found.trainings.append(peeled)


def _script(peeled: Peeled) -> str:
    """Return the script that a shell, or Slurm, is given."""
    if peeled.program.rpartition("/")[2] not in {"bash", "sh", "sbatch"}:
        return ""
    return next((word.text for word in peeled.words[1:] if word.text.endswith(_SCRIPTS)), "")


def training_of(name: str, found: Commands) -> Peeled | None:
    """Return the one training of a script.

    Args:
        name: the script, as the user named it.
        found: its commands.

    Returns:
        the training; None if the script only builds token files.

    Raises:
        MigrateError: there is no training, or another one, or several.
    """
    if not found.trainings:
        if not found.preprocessing:
            raise MigrateError(_no_training(name, found))
        return None
    first, *others = found.trainings
    different = [other for other in others if _arguments(other) != _arguments(first)]
    if different:
        lines = ", ".join(str(training.words[0].place) for training in (first, *different))
        msg = (
            f"{name}: it starts several trainings with different arguments: {lines}.\nGive a copy with one of them; "
            "if the script chooses between them by a variable, give its value: --define NAME=VALUE."
        )
        raise MigrateError(msg)
    return replace(first, launch=_common_launch([training.launch for training in found.trainings]))


def _arguments(peeled: Peeled) -> list[tuple[str, list[str]]]:
    words = (replace(peeled.words[0], text=peeled.program), *peeled.words[1:])
    return [(word.text, [asked.name for asked in word.asked]) for word in words]


def _common_launch(launches: Sequence[Launch | None]) -> Launch | None:
    """Return the launch with what all of them say: the same training may be started in several ways."""
    known = [launch for launch in launches if launch]
    if len(known) < len(launches):
        return None
    return Launch(
        known[0].place,
        _common({launch.nproc for launch in known}),
        _common({launch.nnodes for launch in known}),
        known[0].hostfile if len({launch.hostfile for launch in known}) == 1 else "",
    )


def _common(counts: set[int | None]) -> int | None:
    return counts.pop() if len(counts) == 1 else None


def _no_training(name: str, found: Commands) -> str:
    if found.unknown:
        return "\n".join((*found.others[:2], _unknown_program(found.unknown[0])))
    if found.others:
        return "\n".join((*found.others[:3], _READ))
    scripts = [program for program in found.seen if program.endswith(_SCRIPTS)]
    if scripts:
        started = f"{name}: no training is started here, but the script {scripts[0]} is"
        return f"{started}.\nGive that one if it starts the training."
    seen = ", ".join(sorted(set(found.seen))[:5])
    started = f"what it starts: {seen}" if seen else "it starts no program"
    return f"{name}: no training is started here; {started}.\n{_READ}"


def _unknown_program(word: Word) -> str:
    names = ", ".join(f"--define {asked.name}=..." for asked in word.asked)
    return f"{word.place}: the program that is started here is not known.\nGive {names}"
