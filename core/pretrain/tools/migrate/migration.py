"""A migration: sources in, a recipe with an outcome for every setting out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.next_commands import build_command, notices_of, run_command
from pretrain.tools.migrate.parameters import parameters_line
from pretrain.tools.migrate.recipe import made_recipe, written_recipe
from pretrain.tools.migrate.report import remarks
from pretrain.tools.migrate.stated import stated_settings
from pretrain.tools.migrate.translation import dialect_of, translate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.recipe import MadeRecipe
    from pretrain.tools.migrate.report import ReportLine
    from pretrain.tools.migrate.setting import Derived, MigrateOptions, Setting, Settings
    from pretrain.tools.migrate.sources.files import Launch, MigrateSource
    from pretrain.tools.migrate.translation import Dialect, Translated


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of a migration.

    Attributes:
        text: the recipe.
        recipe: the same, loaded.
        outcomes: of every setting.
        notices: for the user.
        launch: the source's launcher; None if it has none.
        taken_for: the program and version, with the reason: "Megatron-LM of July 2023, the newest ...".
        builds: commands that build the token files as the sources' preprocessing does.
    """

    text: str
    recipe: Recipe
    outcomes: tuple[ReportLine, ...]
    notices: tuple[str, ...]
    launch: Launch | None
    taken_for: str
    builds: tuple[str, ...] = ()

    def commands(self, recipe: str) -> list[str]:
        """Return the commands that build the token files, where the sources have them, and that train the recipe."""
        return [*self.builds, run_command(recipe, self.launch)]

    @property
    def is_complete(self) -> bool:
        """Say whether nothing changes for the user."""
        return not any(outcome.fate in {"not supported", "not known"} for outcome in self.outcomes)


def migrate(sources: Sequence[MigrateSource], options: MigrateOptions) -> Migration:
    """Migrate sources, each laid over those before it."""
    stated = stated_settings(sources, options)
    settings = stated.settings
    dialect = dialect_of(settings.program)
    given = {wish.partition("=")[0].strip() for wish in options.overrides}
    translation = translate(settings, dialect.meaning, dialect.functions, dialect.overlay, given)
    _require_accepted(translation.outcomes, options.accepted, dialect)
    name = ", ".join(source.name for source in sources)
    made = made_recipe(_values(translation), _places(translation, settings), name, options.overrides)
    builds = [build_command(arguments) for source in sources for arguments in source.preprocessing]
    outcomes = [*_in_recipe(translation, made), *stated.unknown]
    outcomes += [outcome for _, found in builds for outcome in found]
    count = parameters_line(settings, made.recipe)
    head = [
        f"Written by pretrain migrate from {name},",
        f"taken for {stated.choice.why}.",
        "A comment names the setting that a value comes from; what equals a default of pretrain is left out.",
        *remarks(outcomes),
        *[count] * bool(count),
    ]
    comments = _comments(translation.keys, settings) | dict.fromkeys(made.overridden, "--set")
    return Migration(
        written_recipe(made.data, comments, head),
        made.recipe,
        tuple(outcomes),
        (*stated.notices, *notices_of(stated.launch), *[count] * bool(count)),
        stated.launch,
        stated.choice.why,
        tuple(command for command, _ in builds),
    )


def _require_accepted(outcomes: Sequence[ReportLine], accepted: Collection[str], dialect: Dialect) -> None:
    """Refuse settings without which the model would compute something else, but for those that the user accepts."""
    unknown = next((name for name in accepted if dialect.meaning(name) is None), None)
    if unknown is not None:
        msg = f"--accept {unknown}: no setting has this name.\nGive names as the error has them: --accept num_experts"
        raise MigrateError(msg)
    refused = {outcome.accept: outcome for outcome in outcomes if outcome.accept and outcome.accept not in accepted}
    if refused:
        lines = [f"{outcome}." for outcome in refused.values()]
        names = ",".join(refused)
        todo = f"The recipe would be of another model. Give --accept {names} to write it all the same."
        raise MigrateError("\n".join([*lines, todo]))


def _values(translation: Translated) -> dict[str, object]:
    return {key: worked.value for key, worked in translation.keys.items()}


def _places(translation: Translated, settings: Settings) -> dict[str, str]:
    """Return where each key was stated, for the errors of a recipe."""
    found = {}
    for key, worked in translation.keys.items():
        stated = _stated(worked, settings)
        if worked.place is not None:
            found[key] = str(worked.place)
        elif stated:
            found[key] = f"{stated[0].place}: {stated[0].written}"
    return found


def _stated(worked: Derived, settings: Settings) -> list[Setting]:
    """Return the settings that sources state for a key."""
    return [settings.stated[name] for name in worked.names if name in settings.stated]


def _comments(keys: Mapping[str, Derived], settings: Settings) -> dict[str, str]:
    sources = {setting.place.source for setting in settings.stated.values() if setting.place is not None}
    return {key: _comment(worked, settings, named=len(sources) > 1) for key, worked in keys.items()}


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
    """Yield outcomes with what the recipe that was made says of their keys: no effect there, or a note that is lost.

    The comment of a key stands in the recipe; one that equals a default of pretrain is left out there.
    """
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
