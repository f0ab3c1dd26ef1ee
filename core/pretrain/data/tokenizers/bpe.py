"""Byte-pair encodings by the `tokenizers` library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers

from pretrain.data.tokenizers.files import END_TOKENS, GPT2_END_TOKENS, fingerprint_of, is_panic, largest_id
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class BpeTokenizer:
    """A tokenizer of the `tokenizers` library.

    Texts are encoded one by one in the calling thread: the library's own thread pool warns when a process forks after
    using it, and callers that want more cores start processes. Measured on GPT-2 BPE, a batch call gains nothing else.
    """

    def __init__(self, codec: Any, *, vocab_size: int, eod: int, fingerprint: str) -> None:
        self._codec = codec
        self.vocab_size = vocab_size
        self.eod = eod
        self.fingerprint = fingerprint
        self.added_tokens = tuple(token.content for token in codec.get_added_tokens_decoder().values())

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens are added where the tokenizer's own file says so."""
        ids: list[int] = self._codec.encode(text).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self._codec.encode(text).ids for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        text: str = self._codec.decode(known, skip_special_tokens=False)
        return text


def gpt2(vocab_file: Path, merge_file: Path) -> BpeTokenizer:
    """Read GPT-2's vocab.json and merges.txt.

    "<|endoftext|>" inside a text is encoded as plain characters, as by Megatron's GPT2BPETokenizer.

    Raises:
        DataError: a file is missing or broken, an id is too large, or the vocabulary has no "<|endoftext|>".
    """
    fingerprint = fingerprint_of("gpt2", vocab_file, merge_file)
    largest = largest_id(vocab_file)

    def read() -> Any:
        codec = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab_file), str(merge_file)))
        codec.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        codec.decoder = tokenizers.decoders.ByteLevel()
        return codec

    codec = _checked(read, f"{vocab_file} and {merge_file} are not GPT-2's vocab.json and merges.txt")
    eod = _end_token(codec, GPT2_END_TOKENS, vocab_file)
    # There are no added tokens, so the file has all ids; asking the library takes longer than reading the file.
    vocab_size = _vocab_size(codec) if largest is None else largest + 1
    return BpeTokenizer(codec, vocab_size=vocab_size, eod=eod, fingerprint=fingerprint)


def huggingface(file: Path) -> BpeTokenizer:
    """Read a tokenizer.json of the `tokenizers` library, as GPT-NeoX-20B's.

    Truncation and padding set in the file are switched off: a document keeps all its tokens.

    Raises:
        DataError: the file is missing or broken, an id is too large, or there is no token that ends a document.
    """
    fingerprint = fingerprint_of("huggingface", file)
    largest_id(file)
    codec = _checked(lambda: tokenizers.Tokenizer.from_file(str(file)), f"{file} is not a tokenizer.json")
    codec.no_truncation()
    codec.no_padding()
    eod = _end_token(codec, END_TOKENS, file)
    return BpeTokenizer(codec, vocab_size=_vocab_size(codec), eod=eod, fingerprint=fingerprint)


def _checked(read: Callable[[], Any], failure: str) -> Any:
    try:
        return read()
    except BaseException as exc:
        if not (isinstance(exc, Exception) or is_panic(exc)):  # the library raises plain Exception
            raise
        msg = f"{failure}:\n{exc}"
        raise DataError(msg) from exc


def _vocab_size(codec: Any) -> int:
    return int(max(codec.get_vocab(with_added_tokens=True).values())) + 1


def _end_token(codec: Any, names: tuple[str, ...], file: Path) -> int:
    for name in names:
        token = codec.token_to_id(name)
        if token is not None:
            return int(token)
    msg = f"{file} has no token that ends a document.\nOne of these is needed: {', '.join(names)}."
    raise DataError(msg)
