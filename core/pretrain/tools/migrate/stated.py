"""Settings that several sources state together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.megatron.meanings import is_listed
from pretrain.tools.migrate.neox.meanings import MEANINGS as NAMES
from pretrain.tools.migrate.neox.objects import flat
from pretrain.tools.migrate.parsing import Parsed, checked, parse, slip
from pretrain.tools.migrate.report import NOT_TAKEN, ReportLine
from pretrain.tools.migrate.setting import UNKNOWN, Setting, Settings, require_known
from pretrain.tools.migrate.sources.files import deepspeed_file
from pretrain.tools.migrate.translation import dialect_of
from pretrain.tools.migrate.version_choice import chosen_program, doubts, is_neox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.programs import Program
    from pretrain.tools.migrate.setting import MigrateOptions
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
    notices: list[str]  # lines for the user
    unknown: list[ReportLine]  # outcomes of settings that no program has


def stated_settings(sources: Sequence[MigrateSource], options: MigrateOptions) -> Stated:
    """Lay sources over one another, and choose the program that they are for."""
    _require_training(sources)
    choice = chosen_program(sources, options.program)
    parsed = Parsed(notices=[notice for source in sources for notice in source.notices])
    for source in sources:
        for setting in source.settings.values():
            if source.kind != "log" or _says_something(setting, parsed, choice.program):
                parsed.put(setting if is_neox(source) else checked(setting, choice.program))
        parse(source.words, choice.program, parsed)
    stated, unknown = _known(parsed, choice.program)
    launch = next((source.launch for source in reversed(sources) if source.launch is not None), None)
    devices = _devices(launch, sources)
    if launch is not None and devices is not None and options.devices not in {None, devices}:
        parsed.notices.append(f"--devices {options.devices} is used, not the {devices} processes of {launch.place}")
        launch = None
    vocabulary = parsed.settings.get("padded_vocab_size")
    settings = Settings(
        choice.program,
        stated,
        options.devices or devices,
        _deepspeed(sources, stated, as_meant=options.as_meant),
        as_meant=options.as_meant,
        vocabulary=vocabulary.value if vocabulary is not None and isinstance(vocabulary.value, int) else None,
    )
    return Stated(settings, choice, launch, parsed.notices + doubts(choice, stated), unknown)


def _require_training(sources: Sequence[MigrateSource]) -> None:
    """Check that sources are of one dialect, and that one of them has settings of a training."""
    neox = [source for source in sources if is_neox(source)]
    others = [source for source in sources if not is_neox(source) and (source.words or source.settings)]
    if neox and others:
        msg = (
            f"{neox[0].name} is for GPT-NeoX, but {others[0].name} is for Megatron-LM.\n"
            "A training has one program: migrate them one by one."
        )
        raise MigrateError(msg)
    files = [source for source in sources if source.deepspeed is not None]
    if neox and files:
        msg = f"{files[0].name}: GPT-NeoX reads no DeepSpeed file.\nPut its keys into the YAML, and leave it out."
        raise MigrateError(msg)
    if not neox and not others:
        names = ", ".join(source.name for source in sources)
        msg = f"{names}: this has no arguments of a training.\nName the script too, or give them with --args."
        raise MigrateError(msg)


def _says_something(setting: Setting, parsed: Parsed, program: Program) -> bool:
    """Say whether a line of a log is more than a default, which only matters over another source."""
    if setting.value is None or setting.name in parsed.settings or setting.name in parsed.asked:
        return setting.value is not None
    flag = program.flags.get(setting.name)
    if flag is None and program.dialect == "megatron" and not is_listed(setting.name):
        return setting.value not in (False, "", []) and dialect_of(program).meaning(setting.name) is None
    default = None if flag is None else flag.default
    return bool(setting.value != default) or isinstance(setting.value, bool) != isinstance(default, bool)


def _known(parsed: Parsed, program: Program) -> tuple[dict[str, Setting], list[ReportLine]]:
    """Return all settings that have a meaning, by name; the others are lines of the report."""
    if parsed.problems:
        lines = [f"{line.rstrip('.')}." for line in parsed.problems[:_SHOWN]]
        more = len(parsed.problems) - _SHOWN
        raise MigrateError("\n".join([*lines, *[f"... and {more} more."] * (more > 0)]))
    dialect = dialect_of(program)
    needed = (one for name, asked in parsed.asked.items() if dialect.needs(name) for one in asked)
    require_known(needed, parsed.asked_flags)
    for name, asked in parsed.asked.items():
        flag = program.flags.get(name)
        written = f"--{name.replace('_', '-')}" if flag is None else flag.spellings[0]
        parsed.settings[name] = Setting(name, UNKNOWN, written, asked[0].place)
    stated = flat(parsed.settings) if program.dialect == "neox" else _without_derived(parsed, program)
    known = {name: setting for name, setting in stated.items() if dialect.meaning(name) is not None}
    unknown = [_not_known(each, program) for name, each in stated.items() if name not in known]
    for setting in parsed.unknown:
        switched = setting.name.removeprefix("no_").removeprefix("disable_")
        name = next((name for name in (setting.name, switched) if dialect.meaning(name) is not None), "")
        if name and not isinstance(dialect.meaning(name), Mapped):
            known.setdefault(name, replace(setting, name=name))
        else:
            unknown.append(_not_known(setting, program))
    return known, unknown


def _without_derived(parsed: Parsed, program: Program) -> dict[str, Setting]:
    """Return settings without those that the program derived and wrote into its log, and add a notice on them."""
    flags, stated = program.flags, parsed.settings.items()
    derived = [name for name, each in stated if name in _DERIVED and name not in flags and each.value]
    if derived:
        parsed.notices.append(f"these are not flags, the program computed them: {', '.join(derived)}")
    return {name: each for name, each in stated if name in flags or (name not in _DERIVED and each.value is not None)}


def _not_known(setting: Setting, program: Program) -> ReportLine:
    names = NAMES if program.dialect == "neox" else {**program.elsewhere, **program.spelled}
    words = setting.written + f" {setting.value}" * isinstance(setting.value, str | int | float)
    hint = slip(setting.written.partition("=")[0], names)
    return ReportLine("not known", words.strip(), f"{NOT_TAKEN}.{hint}" if hint else NOT_TAKEN, setting.place)


def _deepspeed(sources: Sequence[MigrateSource], stated: Mapping[str, Setting], *, as_meant: bool) -> JsonFile | None:
    """Return the DeepSpeed file: a source itself, or the one that the arguments name."""
    own = [source for source in sources if source.deepspeed is not None]
    is_on = as_meant or any(name in stated and stated[name].value for name in ("deepspeed", "deepscale"))
    if own and not is_on:
        msg = (
            f"{own[-1].name}: the program reads no DeepSpeed file without --deepspeed.\n"
            "Give --as-meant to use it anyway, or leave it out."
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
