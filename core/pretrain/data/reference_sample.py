"""A sample of every build is encoded a second time, by the reference tokenizer, and must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.data.chunks import Chunk
    from pretrain.data.encoding import Sample
    from pretrain.data.tokenizers import Tokenizer

_AT_LEAST = 1 << 16
_SHARE = 0.001
"""Of the text: the reference is slower."""


class ReferenceSample:
    """Compares ids with the reference, as long as that is at most a thousandth of the text, or 64 Ki characters.

    Attributes:
        texts: how many agreed.
    """

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        """Keep how to load the reference: that takes longer than to encode a small corpus, and can wait."""
        self._load = load
        self._reference: Tokenizer | None = None
        self._read = 0
        self._compared = 0
        self.texts = 0

    def check(self, chunk: Chunk, sample: Sample | None) -> None:
        """Compare the ids of a text of `chunk`, unless enough was compared.

        Raises:
            DataError: they are others.
        """
        self._read += chunk.size
        if sample is None or self._compared > max(_AT_LEAST, _SHARE * self._read):
            return
        self._compared += len(sample.text)
        self._reference = self._reference or self._load()
        if self._reference.encode(sample.text) != sample.ids:
            msg = (
                f"{chunk.path}, near line {chunk.first_line}: gigatoken gives other tokens than the tokenizers library "
                f"for {sample.text!r:.60}.\nPass --encoder tokenizers, which is slower and the reference."
            )
            raise DataError(msg)
        self.texts += 1
