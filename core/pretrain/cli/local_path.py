"""Type of paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class LocalPath(click.Path):
    """A path of this machine; an address such as s3://bucket/x is refused, and not taken for a folder named s3:."""

    def __init__(self, *, dir_okay: bool = True, is_prefix: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)
        self._is_prefix = is_prefix  # of token files, which a recipe must be able to name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        from pretrain.recipe.section import local_path, token_path  # noqa: PLC0415  slow, and not needed for --help

        try:
            (token_path if self._is_prefix else local_path)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)
