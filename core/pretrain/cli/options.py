"""What commands share: paths, options of ranks, and errors that translate the flags of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pretrain.cli.words import backend_names, override_names
from pretrain.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


class LocalPath(click.Path):
    """A path of this machine; an address such as s3://bucket/x is refused, and not taken for a folder named s3:."""

    def __init__(self, *, dir_okay: bool = True, is_prefix: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)
        self._is_prefix = is_prefix  # of token files, which a recipe must be able to name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if ctx is not None and ctx.resilient_parsing:  # a shell completes another word
            return super().convert(value, param, ctx)
        from pretrain.recipe.section import local_path, token_path  # noqa: PLC0415  slow, and not needed for --help

        try:
            if self._is_prefix:
                token_path(value)
            value = local_path(value)
            if self._is_prefix and value and Path(value).is_dir():
                self.fail(f"{value} is a folder: give a name in it, as in {Path(value) / 'corpus'}.", param, ctx)
        except (ValueError, OSError) as error:  # an OSError of a folder that may not be looked into
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class _TranslatingCommand(click.Command):
    def answer(self, flag: str, values: list[str]) -> str:
        """Return the equivalent of a flag; empty if it is unknown."""
        raise NotImplementedError

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; its error about one unknown option becomes one about all of them."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = {name for option in self.get_params(ctx) for name in option.opts if name.startswith("-")}
            lines = [
                f"{flag}: {self.answer(flag, values) or f'there is no such option.{did_you_mean(flag, own)}'}"
                for flag, values in _flags(given).items()
                if flag not in own
            ]
            if not lines:  # a short option
                raise
            raise click.UsageError("\n".join(lines), ctx) from error


def _flag_of_run(flag: str, values: list[str]) -> str:
    from pretrain.recipe.problem import foreign_names  # noqa: PLC0415  slow, and not needed for --help

    return foreign_names().flag_of_run(flag, values)


_ONE_PROCESS_A_NODE = "pretrain run RECIPE --nproc RANKS --nnodes NODES"
_LAUNCHERS = {
    "slurm": f"it was removed; use srun --ntasks-per-node=1 {_ONE_PROCESS_A_NODE}",
    "openmpi": f"it was removed; use mpirun -npernode 1 -x MASTER_ADDR=HOST {_ONE_PROCESS_A_NODE}",
}
"""Replacements for the former values of --launcher, with which `pretrain` called srun or mpirun itself."""


class RunCommand(_TranslatingCommand):
    """`pretrain run`, which knows the flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse with the value of --resume made explicit: of the words that may follow it only `auto` is one."""
        return super().parse_args(ctx, _with_value_of_resume(args))

    def answer(self, flag: str, values: list[str]) -> str:
        """Return the equivalent of a training flag, or of one that this command had."""
        if flag == "--auto-resume":
            return "it is --resume auto now."
        if flag == "--launcher":
            return _LAUNCHERS.get(values[0] if values else "", "leave it out: --hostfile starts the nodes by pdsh.")
        return _flag_of_run(flag, values)


class EvaluateCommand(_TranslatingCommand):
    """`pretrain evaluate`, which knows the launchers' flags for which it has an option."""

    def answer(self, flag: str, values: list[str]) -> str:
        """Return the equivalent of a flag if it is an option of this command."""
        said = _flag_of_run(flag, values)
        own = {name for option in self.params for name in option.opts}
        return said if own & set(said.rstrip(".").split()) else ""


class BuildCommand(_TranslatingCommand):
    """`pretrain data build`, which knows the flags of preprocess_data.py."""

    def answer(self, flag: str, values: list[str]) -> str:  # noqa: ARG002  none is needed
        """Return the equivalent of a flag of preprocess_data.py."""
        from pretrain.recipe.problem import foreign_names  # noqa: PLC0415  as above

        return foreign_names().flag_of_build(flag)


def _with_value_of_resume(arguments: list[str]) -> list[str]:
    """Return the arguments with `--resume auto` as one word, and `--resume` alone as `--resume=run`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found: list[str] = []
    for word, before in zip(arguments[:end], ["", *arguments], strict=False):
        if word == "auto" and before == "--resume":
            found[-1] = "--resume=auto"
        else:
            found.append("--resume=run" if word == "--resume" else word)
    return found + arguments[end:]


def _flags(arguments: list[str]) -> dict[str, list[str]]:
    """Return each long option with its values, given as following words or after "="."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for argument in arguments:
        if argument == "--":
            break
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            values = found.setdefault(flag, [])
            values += [value] if equals else []
        elif not argument.endswith((".yml", ".yaml")):  # the recipe, which may follow the flags
            values.append(argument)
    return found


def _count(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a positive number; "auto" is None."""
    if value is None or value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        msg = f"'{value}' is neither a positive number nor 'auto'."
        raise click.BadParameter(msg)
    return int(value)


_OPTIONS = (
    click.option(
        "--nproc",
        callback=_count,
        metavar="N|auto",
        help="Ranks to start on this node. auto (the default): one per device, or fewer if the batch cannot be divided "
        "among them; on the cpu tensor x pipeline x context size.",
    ),
    click.option("--nnodes", type=click.IntRange(min=1), metavar="N", help="Nodes; give the same command on each."),
    click.option(
        "--rdzv",
        metavar="HOST:PORT",
        help="Address of the rendezvous; HOST is one of the nodes, or where `pretrain rendezvous` runs.",
    ),
    click.option(
        "--node-rank",
        type=click.IntRange(min=0),
        metavar="K",
        help="Rank of this node, if it must be fixed; HOST is 0.",
    ),
)
COUNTS = "--nproc, --nnodes, --rdzv and --node-rank"


def rank_options(command: F) -> F:
    """Give a command the options `COUNTS`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


backend_option = click.option(
    "--backend",
    default="cpu",
    show_default=True,
    metavar="NAME",
    help="The device plugin.",
    shell_complete=backend_names,
)


def _overrides(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse `--set KEY VALUE`, of which click would say that VALUE is one argument too many."""
    without = next((each for each in given if "=" not in each), None)
    if without is not None and not ctx.resilient_parsing:
        msg = f"--set {without}: an override is section.key=value: write --set {without}=VALUE, without a space."
        raise click.UsageError(msg, ctx)
    return given


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    callback=_overrides,
    metavar="SECTION.KEY=VALUE",
    help="Change a key of the recipe.",
    shell_complete=override_names,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCounts:
    """Values of the options `COUNTS`."""

    nproc: int | None
    nnodes: int | None
    rdzv: str | None
    node_rank: int | None

    @property
    def given(self) -> bool:
        """Say whether any of them is."""
        return any(value is not None for value in (self.nproc, self.nnodes, self.rdzv, self.node_rank))
