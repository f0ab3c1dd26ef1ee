"""Compare a sample of every build with the reference tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import DataError
from pretrain.tools.corpus.sources.documents import where

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.tools.corpus.chunks import Chunk
    from pretrain.tools.corpus.compared_texts import ComparedPart
    from pretrain.tools.corpus.encoding import EncodedChunk

_AT_LEAST = 1 << 16
_SHARE = 0.001
"""Share of the text that is compared; small, because the reference is slower."""


class ReferenceComparison:
    """Compare ids with the reference: the first 64 Ki characters, and then a thousandth of the text.

    Attributes:
        compared: number of texts that agreed wholly or in a part.
        texts: number of all texts.
    """

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        """Store the loader of the reference; it takes longer than encoding a small corpus, so it is called late."""
        self._load = load
        self._reference: Tokenizer | None = None
        self._left = float(_AT_LEAST)
        self.compared = 0
        self.texts = 0

    def check(self, chunk: Chunk, result: EncodedChunk) -> None:
        """Compare the parts chosen from `chunk`, unless enough was compared.

        Raises:
            DataError: the reference gives other ids.
        """
        self._left += _SHARE * chunk.size
        self.texts += result.texts
        agreed = set()
        for part in result.comparisons:
            if self._left <= 0:
                break
            self._left -= len(part.text)
            self._check(chunk, part)
            agreed.add(part.number)
        self.compared += len(agreed)

    def _check(self, chunk: Chunk, part: ComparedPart) -> None:
        self._reference = self._reference or self._load()
        if self._reference.encode(part.text) != part.ids:
            msg = (
                f"{where(chunk)} or a later line: gigatoken gives other tokens than the tokenizers library for "
                f"{part.text!r:.60}.\nPass --encoder tokenizers, which is slower and the reference."
            )
            raise DataError(msg)
