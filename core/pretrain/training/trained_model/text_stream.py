"""Tokens as text while they come, though a character may need several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
"""What tokenizers decode incomplete bytes of a character to, once or for each byte."""

_LONGEST = 3
"""Bytes of UTF-8 that can be there without their character's last one."""


class TextStream:
    """Text of growing tokens; the end of it that the next token may still change is held back."""

    def __init__(self, decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> None:
        """Begin with the tokens of a prompt."""
        self._decode = decode
        self._tokens = list(tokens)
        self._shown = 0

    def append(self, token: int) -> None:
        """Take one more token."""
        self._tokens.append(token)

    def certain(self) -> str:
        """Return the text that no later token will change, without what was returned before."""
        text = self._decode(self._tokens)
        end = text[-_LONGEST:]
        return self._new(text, len(text) - len(end) + len(end.rstrip(_INCOMPLETE)))

    def rest(self) -> str:
        """Return what was held back, at the end of the tokens."""
        text = self._decode(self._tokens)
        return self._new(text, len(text))

    def _new(self, text: str, end: int) -> str:
        begin, self._shown = self._shown, max(self._shown, end)
        return text[begin:end]
