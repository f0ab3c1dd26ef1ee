"""Token files that a recipe has built for it, `data.corpus`: by a tool, imported only for such a recipe."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.data import TokenizerSection


class OwnCorpus(Protocol):
    """Functions of pretrain.tools.corpus.recipe_corpus for a run."""

    def is_complete(self, prefix: str, tokenizer: TokenizerSection) -> bool:
        """Return whether the token files and the tokenizer exist."""

    def prepare_corpus(self, recipe: Recipe) -> None:
        """Build the token files of `data.path`, and the tokenizer, if they are absent."""

    def require_buildable(self, recipe: Recipe) -> None:
        """Check that the corpus can be written, and write nothing."""


def own_corpus() -> OwnCorpus:
    """Return the tool."""
    return cast("OwnCorpus", import_module("pretrain.tools.corpus.recipe_corpus"))
