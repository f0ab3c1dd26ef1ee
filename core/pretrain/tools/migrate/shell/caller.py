"""The shell as its builtins see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.migrate.setting import Place
    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.spans import Text
    from pretrain.tools.migrate.shell.values.expansion import Expansion, Field
    from pretrain.tools.migrate.shell.values.state import Budget, State


class Caller(Protocol):
    """Calls builtins, some of which follow other statements with it."""

    budget: Budget
    lent: list[set[str]]
    """Variables that stand before the calls of the functions around."""

    def expansion(self, state: State) -> Expansion:
        """Return what expands words in a state."""

    def call(self, fields: Sequence[Field], state: State, environment: Mapping[str, Text], *, functions: bool) -> Flow:
        """Start what the first word names."""

    def start(self, fields: Sequence[Field], state: State) -> None:
        """Start a program with what stands before the builtin that names it."""

    def evaluated(self, text: Text, place: Place, state: State) -> Flow:
        """Follow a text as statements."""

    def sourced(self, fields: Sequence[Field], state: State) -> Flow:
        """Follow another file in this shell."""
