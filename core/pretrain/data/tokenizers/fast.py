"""Byte-pair encodings by gigatoken, for the tokenizers that it supports.

It is a young library, so its ids are compared with those of the reference, the `tokenizers` library: see
`pretrain.tools.corpus.encoding_check`.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import orjson
from gigatoken.gigatoken_rs import BPETokenizer, BytesSource, PadTruncate, load_hf_json

from pretrain.data.tokenizers.fast_features import is_compared
from pretrain.data.tokenizers.files import END_TOKENS, GPT2_END_TOKENS, LARGEST_VOCAB, fingerprint_of, is_panic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

_NO_IDS = np.zeros(0, np.uint32)
_PADDING = PadTruncate(0)
"""Pads to the longest row; the lengths of the rows are returned separately."""
_MOST_PADDING = 4
"""Largest ratio of a padded matrix to its content; needs a few calls per chunk, and bounds the memory."""
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class FastTokenizer:
    """A tokenizer of gigatoken. Encoding releases the GIL, and any number of threads may encode.

    gigatoken's own object serves one thread at a time ("Already borrowed"), so each encoding thread has one.
    """

    def __init__(
        self,
        content: str,
        codec: BPETokenizer,
        *,
        vocab_size: int,
        eod: int,
        fingerprint: str,
        added_tokens: Sequence[str],
    ) -> None:
        self._content = content
        self._idle = deque([codec])
        self.vocab_size = vocab_size
        self.eod = eod
        self.fingerprint = fingerprint
        self.added_tokens = added_tokens

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Return the ids of each text.

        Makes few calls: after each call a thread waits for the GIL.
        """
        ids: list[npt.NDArray[np.uint32]] = [_NO_IDS] * len(texts)
        with self._codec() as codec:
            for numbers in _alike(texts):
                # For a list of texts it checks whether it is awkward's; importing awkward takes longer than 20 MB of
                # text.
                source = BytesSource([texts[number].encode() for number in numbers])
                rows, lengths = codec.encode_batch_padded(source, _PADDING, parallel=False)
                for number, row, length in zip(numbers, rows, lengths.tolist(), strict=True):
                    ids[number] = row[:length]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        with self._codec() as codec:
            text: bytes = codec.decode([i for i in ids if 0 <= i < self.vocab_size])
        return text.decode(errors="replace")

    @contextmanager
    def _codec(self) -> Iterator[BPETokenizer]:
        """Yield a codec that no other thread uses."""
        try:
            codec = self._idle.pop()
        except IndexError:
            codec = cast("BPETokenizer", load_hf_json(self._content))  # of the same type as the first one
        try:
            yield codec
        finally:
            self._idle.append(codec)


def _alike(texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the numbers of all texts in groups of similar length, which bounds the padding by `_MOST_PADDING`."""
    longest_first = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    begin = size = 0
    for end, number in enumerate(longest_first):
        size += len(texts[number])
        if len(texts[longest_first[begin]]) * (end + 1 - begin) > _MOST_PADDING * size:
            yield longest_first[begin:end]
            begin, size = end, len(texts[number])
    if texts:
        yield longest_first[begin:]


def gpt2(vocab_file: Path, merge_file: Path) -> FastTokenizer | None:
    """Read GPT-2's vocab.json and merges.txt; None if gigatoken, or this module, does not support their content."""
    try:
        vocab, merges = vocab_file.read_text(encoding="utf-8"), merge_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    pairs = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    model = f'{{"type": "BPE", "vocab": {vocab}, "merges": {orjson.dumps(pairs).decode()}}}'
    content = f'{{"added_tokens": [], "pre_tokenizer": {orjson.dumps(_BYTE_LEVEL).decode()}, "model": {model}}}'
    return _load(content, GPT2_END_TOKENS, fingerprint_of("gpt2", vocab_file, merge_file))


def huggingface(file: Path) -> FastTokenizer | None:
    """Read a tokenizer.json; None unless gigatoken is known to give the reference's ids for all of its features."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return _load(content, END_TOKENS, fingerprint_of("huggingface", file))


def _load(content: str, end_tokens: Sequence[str], fingerprint: str) -> FastTokenizer | None:
    try:
        description = orjson.loads(content)
        ids = dict(description["model"]["vocab"])
        ids |= {token["content"]: token["id"] for token in description.get("added_tokens") or []}
        eod = next((ids[name] for name in end_tokens if name in ids), None)
        vocab_size = max(ids.values()) + 1
        if eod is None or vocab_size > LARGEST_VOCAB or not is_compared(description):
            return None
        codec = load_hf_json(content)
    except BaseException as exc:
        if not (isinstance(exc, Exception) or is_panic(exc)):
            raise
        return None  # the reference reads it, or reports the error
    if not isinstance(codec, BPETokenizer):
        return None
    return FastTokenizer(
        content,
        codec,
        vocab_size=vocab_size,
        eod=eod,
        fingerprint=fingerprint,
        added_tokens=[token["content"] for token in description.get("added_tokens") or []],
    )
