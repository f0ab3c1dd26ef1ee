"""A migration: sources in, a recipe with an outcome for every setting out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import NotNeeded, NotSupported
from pretrain.tools.migrate.megatron.meanings import BUILD_MEANINGS
from pretrain.tools.migrate.parameters import parameters_line
from pretrain.tools.migrate.recipe import made_recipe, written_recipe
from pretrain.tools.migrate.report import NOT_TAKEN, ReportLine, remarks
from pretrain.tools.migrate.stated import stated_settings
from pretrain.tools.migrate.translation import dialect_of, translate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.recipe import MadeRecipe
    from pretrain.tools.migrate.report import Fate
    from pretrain.tools.migrate.setting import Derived, MigrateOptions, Setting, Settings, Word
    from pretrain.tools.migrate.sources.files import Launch, MigrateSource
    from pretrain.tools.migrate.translation import Translated


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of a migration."""

    text: str  # the recipe
    recipe: Recipe  # the same, loaded
    outcomes: tuple[ReportLine, ...]  # of every setting
    notices: tuple[str, ...]  # for the user
    launch: Launch | None  # the source's launcher; None if it has none
    taken_for: str  # the program and version, with the reason: "Megatron-LM of July 2023, the newest ..."
    builds: tuple[str, ...] = ()  # commands that build the token files as the sources' preprocessing does

    def commands(self, recipe: str) -> list[str]:
        """Return the commands that build the token files, where the sources have them, and that train the recipe."""
        return [*self.builds, _run_command(recipe, self.launch)]

    @property
    def is_complete(self) -> bool:
        """Say whether nothing changes for the user."""
        return not any(outcome.fate in {"not supported", "not known"} for outcome in self.outcomes)


def migrate(sources: Sequence[MigrateSource], options: MigrateOptions) -> Migration:
    """Migrate sources, each laid over those before it."""
    stated = stated_settings(sources, options)
    settings = stated.settings
    given = {wish.partition("=")[0].strip() for wish in options.overrides}
    translation = translate(settings, dialect_of(settings.program), given)
    _require_accepted(translation.outcomes, options.accepted)
    name = ", ".join(source.name for source in sources)
    values = {key: worked.value for key, worked in translation.keys.items()}
    made = made_recipe(values, _places(translation, settings), name, options.overrides)
    builds = [build_command(arguments) for source in sources for arguments in source.preprocessing]
    outcomes = [*_in_recipe(translation, made), *stated.unknown]
    outcomes += [outcome for _, found in builds for outcome in found]
    count = parameters_line(settings, made.recipe, {outcome.accept for outcome in translation.outcomes})
    head = [
        f"Written by pretrain migrate from {name},",
        f"taken for {stated.choice.why}.",
        "A comment names the setting that a value comes from; values that are pretrain's defaults are left out.",
        *remarks(outcomes),
        *[count] * bool(count),
    ]
    sources_named = len({each.place.source for each in settings.stated.values() if each.place is not None}) > 1
    comments = {key: _comment(worked, settings, named=sources_named) for key, worked in translation.keys.items()}
    comments |= dict.fromkeys(made.overridden, "--set")
    return Migration(
        text=written_recipe(made.data, comments, head),
        recipe=made.recipe,
        outcomes=tuple(outcomes),
        notices=(*stated.notices, *_hosts_notice(stated.launch), *[count] * bool(count)),
        launch=stated.launch,
        taken_for=stated.choice.why,
        builds=tuple(command for command, _ in builds),
    )


def _require_accepted(outcomes: Sequence[ReportLine], accepted: Collection[str]) -> None:
    """Refuse settings without which the model would compute something else, but for those that the user accepts."""
    names = dict.fromkeys(outcome.accept for outcome in outcomes if outcome.accept)
    if idle := ", ".join(sorted(set(accepted) - names.keys())):
        todo = f"Refused are: {', '.join(names)}." if names else "Nothing is refused: leave --accept out."
        msg = f"--accept {idle}: no setting of this name is refused.\n{todo}"
        raise MigrateError(msg)
    refused = {outcome.accept: outcome for outcome in outcomes if outcome.accept and outcome.accept not in accepted}
    if refused:
        lines = [f"{outcome}." for outcome in refused.values()]
        todo = f"The recipe would describe another model. Give --accept {','.join(refused)} to write it anyway."
        raise MigrateError("\n".join([*lines, todo]))


def _places(translation: Translated, settings: Settings) -> dict[str, str]:
    found = {}
    for key, worked in translation.keys.items():
        stated = _stated(worked, settings)
        if worked.place is not None:
            found[key] = str(worked.place)
        elif stated:
            found[key] = f"{stated[0].place}: {stated[0].written}"
    return found


def _stated(worked: Derived, settings: Settings) -> list[Setting]:
    return [settings.stated[name] for name in worked.names if name in settings.stated]


def _comment(worked: Derived, settings: Settings, *, named: bool) -> str:
    """Return the settings that a value comes from, with their lines, and with their file if there are several."""
    stated = _stated(worked, settings)
    parts = [", ".join(_at(setting, named=named) for setting in stated)] if stated else []
    if not stated and any(name in settings.program.flags for name in worked.names):
        parts = [f"default of {settings.program.title}"]
    return "; ".join(parts + [worked.note] * bool(worked.note))


def _at(setting: Setting, *, named: bool) -> str:
    place = setting.place
    if place is None or not (place.line or named):
        return setting.written
    return f"{setting.written} ({place if named else f'line {place.line}'})"


def _in_recipe(translation: Translated, made: MadeRecipe) -> Iterator[ReportLine]:
    """Yield outcomes with what the recipe that was made says of their keys: no effect there, or a note that is lost."""
    # The comment of a key stands in the recipe; one that equals a default of pretrain is left out there.
    idle = {problem.path: problem.text.rstrip(".") for problem in made.idle}
    written = made.written
    for outcome in translation.outcomes:
        if outcome.keys and all(key in idle for key in outcome.keys):
            why = "; ".join(f"{key}: {idle[key]}" for key in outcome.keys)
            yield replace(outcome, fate="no effect", text=why)
            continue
        left_out = (translation.keys[key] for key in outcome.keys if key in translation.keys and key not in written)
        notes = [outcome.note, *(worked.note for worked in left_out if worked.place is None)]  # else it is the place
        yield replace(outcome, note="; ".join(note for note in dict.fromkeys(notes) if note))


def _run_command(recipe: str, launch: Launch | None) -> str:
    """Return the command that trains a recipe on as many processes as a launcher starts; a hostfile says how many."""
    words = ["pretrain", "run", recipe]
    if launch is not None and launch.hostfile:
        return shlex.join([*words, "--hostfile", launch.hostfile])
    if launch is not None and launch.nproc is not None:
        words += ["--nproc", str(launch.nproc)]
    if launch is not None and (launch.nnodes or 1) > 1:
        words += ["--nnodes", str(launch.nnodes), "--rdzv", "HOST:29500"]
    return shlex.join(words)


def _hosts_notice(launch: Launch | None) -> list[str]:
    if launch is None or not launch.hostfile or launch.nnodes is None:
        return []
    return [f"{launch.place}: it takes {launch.nnodes} nodes of {launch.hostfile}, but pretrain takes all of them"]


def build_command(arguments: Sequence[Word]) -> tuple[str, list[ReportLine]]:
    """Return the `pretrain data build` command for arguments of preprocess_data.py, and what became of each."""
    flags = list(_flags(arguments))
    tokenizer = next((values for name, _, values in flags if name == "tokenizer_type"), [])
    is_file = any(value.startswith(("HF", "HuggingFace", "Pretrained")) for value in tokenizer)
    words, outcomes = ["pretrain", "data", "build"], []
    for name, written, values in flags:
        meaning = BUILD_MEANINGS.get(name)
        fate: Fate = "carried over"
        if name in {"json_keys", "jsonl_keys"} and len(values) > 1:
            fate, text = "not supported", f"a build takes one key, here {values[0]}: build the others one by one"
            words += ["--json-key", values[0]]
        elif isinstance(meaning, NotNeeded) and meaning.reason == "option" and " " not in meaning.text:
            option = "--tokenizer-file" if is_file and meaning.text == "--vocab-file" else meaning.text
            words += [option, *values]
            text = f"{option} of pretrain data build"
        elif isinstance(meaning, NotNeeded):
            fate, text = meaning.outcome("pretrain data build")
        elif isinstance(meaning, NotSupported):
            fate, text = "not supported", meaning.change
        elif meaning is None:
            fate, text = "not known", NOT_TAKEN
        else:
            msg = f"{name} cannot be a key: a build has no recipe"
            raise TypeError(msg)
        shown = " ".join((written.text, *values)) if fate == "not known" else written.text
        outcomes.append(ReportLine(fate, shown, text, written.place))
    return shlex.join(words), outcomes


def _flags(arguments: Sequence[Word]) -> Iterator[tuple[str, Word, list[str]]]:
    """Yield each flag by its name, as it is written, and its values; the beginning of a flag is enough for argparse."""
    position = 0
    while position < len(arguments):
        written, equals, value = arguments[position].text.partition("=")
        values = [value] * bool(equals)
        start, position = position, position + 1
        while position < len(arguments) and not arguments[position].text.startswith("--"):
            word = arguments[position]
            values.append(word.asked[0].why if word.asked else word.text)  # an unknown one stays as it is written
            position += 1
        name = written.lstrip("-").replace("-", "_")
        near = [known for known in BUILD_MEANINGS if known.startswith(name)]
        is_short = name not in BUILD_MEANINGS and len({BUILD_MEANINGS[known] for known in near}) == 1
        yield near[0] if is_short else name, replace(arguments[start], text=written), values
