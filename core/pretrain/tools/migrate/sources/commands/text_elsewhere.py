"""Text of commands that another machine gets: ssh HOST TEXT, sbatch --wrap TEXT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Word
    from pretrain.tools.migrate.sources.commands.command_layers import Peeled


def text_elsewhere(peeled: Peeled) -> Word | None:
    """Return the text that a command hands on; None for a command that hands on none.

    Args:
        peeled: a command, down to ssh or sbatch.
    """
    base, words = peeled.program.rpartition("/")[2], peeled.words[1:]
    if base == "sbatch":
        return _wrapped(words)
    # One word: of several, those from the Python program on have been found already.
    return words[-1] if base == "ssh" and len(words) > 1 and " " in words[-1].text.strip() else None


def _wrapped(words: tuple[Word, ...]) -> Word | None:
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word.text == "--wrap":
            return following
        if word.text.startswith("--wrap="):
            return replace(word, text=word.text.removeprefix("--wrap="))
    return None
