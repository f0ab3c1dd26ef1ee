"""A sample of every build is encoded a second time, by the reference tokenizer, and must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.corpus.sources.documents import where
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.data.corpus.chunks import Chunk
    from pretrain.data.corpus.compared_texts import Sample
    from pretrain.data.corpus.encoding import EncodedChunk
    from pretrain.data.tokenizers import Tokenizer

_AT_LEAST = 1 << 16
_SHARE = 0.001
"""Of the text: the reference is slower."""


class ReferenceSample:
    """Compares ids with the reference: 64 Ki characters at the beginning, and a thousandth of the text.

    Attributes:
        compared: texts that agreed, or a part of which did.
        texts: of how many.
    """

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        """Keep how to load the reference: that takes longer than to encode a small corpus, and can wait."""
        self._load = load
        self._reference: Tokenizer | None = None
        self._left = float(_AT_LEAST)
        self.compared = 0
        self.texts = 0

    def check(self, chunk: Chunk, result: EncodedChunk) -> None:
        """Compare the samples of `chunk`, unless enough was compared.

        Raises:
            DataError: the reference gives other ids.
        """
        self._left += _SHARE * chunk.size
        self.texts += result.texts
        agreed = set()
        for sample in result.samples:
            if self._left <= 0:
                break
            self._left -= len(sample.text)
            self._check(chunk, sample)
            agreed.add(sample.number)
        self.compared += len(agreed)

    def _check(self, chunk: Chunk, sample: Sample) -> None:
        self._reference = self._reference or self._load()
        if self._reference.encode(sample.text) != sample.ids:
            msg = (
                f"{where(chunk)} or a later line: gigatoken gives other tokens than the tokenizers library for "
                f"{sample.text!r:.60}.\nPass --encoder tokenizers, which is slower and the reference."
            )
            raise DataError(msg)
