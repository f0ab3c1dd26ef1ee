"""`pretrain completion`: the script with which a shell completes this command line, and the words that it is given."""

from __future__ import annotations

import re

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete, add_completion_class

from pretrain.cli.commands import COMPLETION_VARIABLE


class _Bash(BashComplete):
    """Bash, which splits words at "=" too, and puts a space after each word if it is not told otherwise."""

    def source(self) -> str:
        plain = "COMPREPLY+=($value)"
        return super().source().replace(plain, f"{plain}\n            [[ $value == *[.=] ]] && compopt -o nospace")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, each override in one piece again, and the word at the cursor."""
        words, incomplete = super().get_completion_args()
        joined = re.sub(r"\0=(\0|$)", "=", "\0".join(words))
        return joined.split("\0") if words else [], incomplete


class _Zsh(ZshComplete):
    """Zsh, which puts a space after each word if it is not told otherwise."""

    def source(self) -> str:
        described = "_describe -V unsorted completions_with_descriptions -U"
        open_end = "[[ ${completions_with_descriptions[1]%%:*} == *[.=] ]] && _describe -V unsorted "
        open_end += f"completions_with_descriptions -U -S '' || {described}"
        return super().source().replace(described, open_end)


_SHELLS = {"bash": _Bash, "zsh": _Zsh, "fish": FishComplete}
for _shell in _SHELLS.values():
    add_completion_class(_shell)


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, recipes, keys of --set and backends.

    \b
    bash    in ~/.bashrc:                 eval "$(pretrain completion bash)"
    zsh     in ~/.zshrc, after compinit:  eval "$(pretrain completion zsh)"
    fish    once:  pretrain completion fish > ~/.config/fish/completions/pretrain.fish

    It takes effect in a new shell, where `pretrain` must be on the PATH (with its environment activated).
    """  # noqa: D301  \b is click's mark for text that keeps its lines
    click.echo(_SHELLS[shell](context.find_root().command, {}, "pretrain", COMPLETION_VARIABLE).source())
