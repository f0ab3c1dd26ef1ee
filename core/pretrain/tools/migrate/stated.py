"""Settings that several sources state together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.megatron.meanings import is_listed
from pretrain.tools.migrate.neox.meanings import MEANINGS as NAMES
from pretrain.tools.migrate.neox.objects import flat
from pretrain.tools.migrate.parsing import parse, slip
from pretrain.tools.migrate.report import NOT_TAKEN, ReportLine
from pretrain.tools.migrate.setting import UNKNOWN, Setting, Settings, require_known
from pretrain.tools.migrate.sources.files import deepspeed_file
from pretrain.tools.migrate.translation import dialect_of
from pretrain.tools.migrate.typed_values import checked
from pretrain.tools.migrate.version_choice import chosen_program, doubts, is_neox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.parsing import Parsed
    from pretrain.tools.migrate.programs import Program
    from pretrain.tools.migrate.setting import MigrateOptions, RuntimeValue
    from pretrain.tools.migrate.sources.files import Launch, MigrateSource
    from pretrain.tools.migrate.version_choice import ProgramChoice

_SHOWN = 8

_DERIVED = {
    *("consumed_train_samples", "consumed_train_tokens", "consumed_valid_samples", "curr_iteration", "iteration"),
    *("data_parallel_size", "transformer_pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("rank", "world_size", "padded_vocab_size", "params_dtype", "ds_pipeline_enabled", "use_dist_ckpt"),
    "variable_seq_lengths",
}
"""Names that validate_args and initialize_megatron add to the flags; a log of Megatron-LM lists them too."""


@dataclass(slots=True)
class Stated:
    """Settings of one training."""

    settings: Settings  # with the program and the devices
    choice: ProgramChoice  # of the program, with the reason
    launch: Launch | None  # the launcher; None if no source has one
    notices: list[str] = field(default_factory=list)  # lines for the user
    unknown: list[ReportLine] = field(default_factory=list)  # outcomes of settings that no program has


def stated_settings(sources: Sequence[MigrateSource], options: MigrateOptions) -> Stated:
    """Lay sources over one another, and choose the program that they are for."""
    _require_training(sources)
    choice = chosen_program(sources, options.program)
    laid = _Laid(choice.program, [notice for source in sources for notice in source.notices])
    for source in sources:
        laid.add(source)
    stated = laid.finished()
    launch = next((source.launch for source in reversed(sources) if source.launch is not None), None)
    devices = _devices(launch, sources)
    if launch is not None and devices is not None and options.devices not in {None, devices}:
        laid.notices.append(f"--devices {options.devices} counts, not the {devices} processes of {launch.place}")
        launch = None
    vocabulary = laid.settings.get("padded_vocab_size")
    settings = Settings(
        choice.program,
        stated,
        options.devices or devices,
        _deepspeed(sources, stated, as_meant=options.as_meant),
        as_meant=options.as_meant,
        vocabulary=vocabulary.value if vocabulary is not None and isinstance(vocabulary.value, int) else None,
    )
    return Stated(settings, choice, launch, laid.notices + doubts(choice, stated), laid.outcomes)


def _require_training(sources: Sequence[MigrateSource]) -> None:
    """Check that sources are of one dialect, and that one of them has settings of a training."""
    neox = [source for source in sources if is_neox(source)]
    others = [source for source in sources if not is_neox(source) and (source.words or source.settings)]
    if neox and others:
        msg = (
            f"{neox[0].name} is GPT-NeoX's, but {others[0].name} is Megatron's.\n"
            "Migrate them one after the other; a training has one program."
        )
        raise MigrateError(msg)
    files = [source for source in sources if source.deepspeed is not None]
    if neox and files:
        msg = f"{files[0].name}: GPT-NeoX reads no DeepSpeed file.\nPut its keys into the YAML, and leave it out."
        raise MigrateError(msg)
    if not neox and not others:
        names = ", ".join(source.name for source in sources)
        msg = f"{names} alone: no arguments of a training.\nName the script too, or give them with --args."
        raise MigrateError(msg)


@dataclass(slots=True)
class _Laid:
    """Settings of sources, while they are laid over one another."""

    program: Program
    notices: list[str]
    settings: dict[str, Setting] = field(default_factory=dict)
    asked: dict[str, tuple[RuntimeValue, ...]] = field(default_factory=dict)
    asked_flags: list[RuntimeValue] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unknown: list[Setting] = field(default_factory=list)
    outcomes: list[ReportLine] = field(default_factory=list)

    def add(self, source: MigrateSource) -> None:
        """Lay one more source over the others."""
        for setting in source.settings.values():
            if source.kind != "log" or self._says_something(setting):
                self._put(setting if is_neox(source) else checked(setting, self.program))
        if source.words:
            self._add_parsed(parse(source.words, self.program))

    def _says_something(self, setting: Setting) -> bool:
        """Say whether a line of a log is more than a default, which only matters over another source."""
        if setting.value is None or setting.name in self.settings:
            return setting.value is not None
        flag = self.program.flags.get(setting.name)
        if flag is None and self.program.dialect == "megatron" and not is_listed(setting.name):
            return setting.value not in (False, "", []) and dialect_of(self.program).meaning(setting.name) is None
        default = None if flag is None else flag.default
        return bool(setting.value != default) or isinstance(setting.value, bool) != isinstance(default, bool)

    def _add_parsed(self, parsed: Parsed) -> None:
        self.problems += parsed.problems
        self.notices += parsed.notices
        self.asked_flags += parsed.asked_flags
        self.unknown += parsed.unknown
        for setting in parsed.settings.values():
            self._put(setting)
        for name, asked in parsed.asked.items():
            flag = self.program.flags.get(name)
            written = f"--{name.replace('_', '-')}" if flag is None else flag.spellings[0]
            self.settings[name] = Setting(name, UNKNOWN, written, asked[0].place)
            self.asked[name] = asked

    def _put(self, setting: Setting) -> None:
        before = self.settings.get(setting.name)
        if before is not None and before.value not in (setting.value, UNKNOWN):
            line = f"{setting.written} {setting.value} takes the place of {before.written} {before.value}"
            self.notices.append(f"{setting.place}: {line} of {before.place}")
        self.settings[setting.name] = setting
        self.asked.pop(setting.name, None)

    def finished(self) -> dict[str, Setting]:
        """Return all settings that have a meaning; the others become lines of the report."""
        if self.problems:
            lines = [f"{line.rstrip('.')}." for line in self.problems[:_SHOWN]]
            more = len(self.problems) - _SHOWN
            raise MigrateError("\n".join([*lines, *[f"... and {more} more."] * (more > 0)]))
        dialect = dialect_of(self.program)
        require_known(
            (one for name, asked in self.asked.items() if dialect.needs(name) for one in asked), self.asked_flags
        )
        stated = flat(self.settings) if self.program.dialect == "neox" else self._without_derived()
        known = {name: setting for name, setting in stated.items() if dialect.meaning(name) is not None}
        self.outcomes += [self._not_known(each) for name, each in stated.items() if name not in known]
        for setting in self.unknown:
            switched = setting.name.removeprefix("no_").removeprefix("disable_")
            name = next((name for name in (setting.name, switched) if dialect.meaning(name) is not None), "")
            if name and not isinstance(dialect.meaning(name), Mapped):
                known.setdefault(name, replace(setting, name=name))
            else:
                self.outcomes.append(self._not_known(setting))
        return known

    def _without_derived(self) -> dict[str, Setting]:
        """Return settings without those that the program derived and wrote into its log, and a notice on them."""
        flags = self.program.flags
        derived = [
            name for name, each in self.settings.items() if name in _DERIVED and name not in flags and each.value
        ]
        if derived:
            self.notices.append(f"no flags, but worked out by the program itself: {', '.join(derived)}")
        stated = self.settings.items()
        return {
            name: each for name, each in stated if name in flags or (name not in _DERIVED and each.value is not None)
        }

    def _not_known(self, setting: Setting) -> ReportLine:
        names = NAMES if self.program.dialect == "neox" else {**self.program.elsewhere, **self.program.spelled}
        words = setting.written + f" {setting.value}" * isinstance(setting.value, str | int | float)
        hint = slip(setting.written.partition("=")[0], names)
        return ReportLine("not known", words.strip(), f"{NOT_TAKEN}.{hint}" if hint else NOT_TAKEN, setting.place)


def _deepspeed(sources: Sequence[MigrateSource], stated: Mapping[str, Setting], *, as_meant: bool) -> JsonFile | None:
    """Return the DeepSpeed file: a source itself, or the one that the arguments name."""
    own = [source for source in sources if source.deepspeed is not None]
    is_on = as_meant or any(name in stated and stated[name].value for name in ("deepspeed", "deepscale"))
    if own and not is_on:
        msg = (
            f"{own[-1].name}: without --deepspeed the program reads no DeepSpeed file.\n"
            "Give --as-meant to take it, or leave it out."
        )
        raise MigrateError(msg)
    if own:
        return own[-1].deepspeed
    named = stated.get("deepspeed_config") or stated.get("deepscale_config")
    if named is None or not isinstance(named.value, str) or named.value == UNKNOWN:
        return None
    source = next(source for source in reversed(sources) if source.words or source.settings)
    return deepspeed_file(source, named.value, named.place)


def _devices(launch: Launch | None, sources: Sequence[MigrateSource]) -> int | None:
    """Return the number of devices of a log, which has the world's size, or of a launcher."""
    sizes = (source.settings.get("world_size") for source in reversed(sources) if source.kind == "log")
    logged = next((size.value for size in sizes if size is not None and isinstance(size.value, int)), None)
    if logged is not None or launch is None or launch.nproc is None or launch.nnodes is None:
        return logged
    return launch.nproc * launch.nnodes
