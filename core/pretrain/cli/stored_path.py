"""Paths of commands that may be addresses in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.cli.options import LocalPath

if TYPE_CHECKING:
    from pathlib import Path

    import click


class StoredPath(LocalPath):
    """A path of this machine, or an address in an object store, which becomes the path of this node's copy."""

    def __init__(self, *, is_checkpoint: bool) -> None:
        super().__init__()
        self._is_checkpoint = is_checkpoint  # of which the latest is copied

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        from pretrain.recipe.section import stored_path  # noqa: PLC0415  slow, and not needed for --help
        from pretrain.stores.address import is_address  # noqa: PLC0415

        try:
            value = stored_path(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not is_address(value) or (ctx is not None and ctx.resilient_parsing):
            return super().convert(value, param, ctx)
        return self.copied(value)

    def copied(self, address: str) -> Path:
        """Return this node's copy of what is at an address."""
        from pretrain.checkpoint.stored_folder import checkpoint_folder  # noqa: PLC0415  as above
        from pretrain.stores.stored_inputs import local_input  # noqa: PLC0415

        return (checkpoint_folder if self._is_checkpoint else local_input)(address)
