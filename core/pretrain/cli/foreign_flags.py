"""Commands whose errors translate the flags of other programs."""

from __future__ import annotations

import click

from pretrain.errors import did_you_mean
from pretrain.recipe.foreign_names import foreign_names


class _TranslatingCommand(click.Command):
    """Command whose error names the equivalents of all unknown options at once."""

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


_ONE_PROCESS_A_NODE = "pretrain run RECIPE --nproc RANKS --nnodes NODES"
_LAUNCHERS = {
    "slurm": f"it was removed; use srun --ntasks-per-node=1 {_ONE_PROCESS_A_NODE}",
    "openmpi": f"it was removed; use mpirun -npernode 1 -x MASTER_ADDR=HOST {_ONE_PROCESS_A_NODE}",
}
"""Answers to values that --launcher had, with which `pretrain` called srun or mpirun itself."""


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
        return foreign_names().flag_of_run(flag, values)


class EvaluateCommand(_TranslatingCommand):
    """`pretrain evaluate`, which knows the launchers' flags for which it has an option."""

    def answer(self, flag: str, values: list[str]) -> str:
        """Return the equivalent of a flag if it is an option of this command."""
        said = foreign_names().flag_of_run(flag, values)
        own = {name for option in self.params for name in option.opts}
        return said if own & set(said.rstrip(".").split()) else ""


class BuildCommand(_TranslatingCommand):
    """`pretrain data build`, which knows the flags of preprocess_data.py."""

    def answer(self, flag: str, values: list[str]) -> str:  # noqa: ARG002  none is needed
        """Return the equivalent of a flag of preprocess_data.py."""
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
