"""Tokenizers of the `tokenizers` library: loading, and training of a byte-pair encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pretrain.atomic_files import refuse_existing, replacing
from pretrain.data.tokenizers.tokenizer import (
    END_OF_DOCUMENT,
    END_TOKENS,
    GPT2_END_TOKENS,
    LARGEST_VOCAB,
    fingerprint_of,
    is_panic,
    largest_id,
)
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


class BpeTokenizer:
    """A tokenizer of the `tokenizers` library.

    Texts are encoded one by one in the calling thread: the library's own thread pool warns when a process forks after
    using it, and callers that want more cores start processes. Measured on GPT-2 BPE, a batch call gains nothing else.
    """

    def __init__(self, codec: Any, *, vocab_size: int, eod: int | None, fingerprint: str) -> None:
        self._codec = codec
        self.vocab_size = vocab_size
        self.eod = eod
        self.fingerprint = fingerprint
        self.added_tokens = tuple(token.content for token in codec.get_added_tokens_decoder().values())

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens are added where the tokenizer's own file says so."""
        try:
            ids: list[int] = self._codec.encode(text).ids
        except Exception as exc:  # the library raises plain Exception
            if unknown := _unknown_character(self._codec, text):
                raise DataError(unknown) from exc
            raise
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        text: str = self._codec.decode(known, skip_special_tokens=False)
        return text


def gpt2(vocab_file: Path, merge_file: Path) -> BpeTokenizer:
    """Read GPT-2's vocab.json and merges.txt; "<|endoftext|>" in a text is plain characters, as in Megatron-LM."""
    fingerprint = fingerprint_of("gpt2", vocab_file, merge_file)
    largest = largest_id(vocab_file)

    def read() -> Any:
        codec = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab_file), str(merge_file)))
        codec.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        codec.decoder = tokenizers.decoders.ByteLevel()
        return codec

    codec = _checked(read, f"{vocab_file} and {merge_file} are not GPT-2's vocab.json and merges.txt")
    eod = _end_token(codec, GPT2_END_TOKENS)
    # There are no added tokens, so the file has all ids; asking the library takes longer than reading the file.
    vocab_size = _vocab_size(codec) if largest is None else largest + 1
    return BpeTokenizer(codec, vocab_size=vocab_size, eod=eod, fingerprint=fingerprint)


def huggingface(file: Path) -> BpeTokenizer:
    """Read a tokenizer.json of the `tokenizers` library; truncation and padding set in the file are switched off."""
    fingerprint = fingerprint_of("huggingface", file)
    largest_id(file)
    codec = _checked(lambda: tokenizers.Tokenizer.from_file(str(file)), f"{file} is not a tokenizer.json")
    codec.no_truncation()
    codec.no_padding()
    eod = _end_token(codec, END_TOKENS)
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


def _end_token(codec: Any, names: tuple[str, ...]) -> int | None:
    return next((int(token) for name in names if (token := codec.token_to_id(name)) is not None), None)


def _unknown_character(codec: Any, text: str) -> str:
    """Return the error of the first character that a vocabulary of characters does not have; empty for no such."""
    if not isinstance(codec.model, models.WordLevel):
        return ""
    character = next((each for each in text if codec.token_to_id(each) is None), "")
    if not character:
        return ""
    return (
        f"the tokenizer has no token for the character {character!r} (U+{ord(character):04X}).\n"
        "Train it on text that has this character, or give it a token for all others: --type char --unknown."
    )


SMALLEST_VOCAB = 257  # the 256 bytes and the end of a document


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, output: Path, *, force: bool = False, show_progress: bool = False
) -> int:
    """Train a tokenizer on `texts`, write it as a tokenizer.json, and return its number of tokens.

    Token 0 is "<|endoftext|>", 1 to 256 are the bytes, then come the merges: fewer than `vocab_size` asks for (257 to
    4,194,304) if the texts have fewer different pairs. The same texts give the same file.
    """
    if vocab_size < SMALLEST_VOCAB:
        msg = f"a vocabulary of {vocab_size} tokens is too small.\nThe 256 bytes and {END_OF_DOCUMENT} need 257."
        raise DataError(msg)
    if vocab_size > LARGEST_VOCAB:
        msg = f"a vocabulary of {vocab_size:,} tokens is too large; give at most {LARGEST_VOCAB:,}."
        raise DataError(msg)
    refuse_existing([output], force=force)
    codec = tokenizers.Tokenizer(models.BPE())
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    codec.train_from_iterator(_not_empty(texts), trainer)
    with replacing(output) as stream:
        stream.write(codec.to_str(pretty=True).encode())
    return int(codec.get_vocab_size())


def _not_empty(texts: Iterable[str]) -> Iterable[str]:
    found = False
    for text in texts:
        found = found or bool(text)
        yield text
    if not found:
        msg = "there is no text to train a tokenizer on."
        raise DataError(msg)
