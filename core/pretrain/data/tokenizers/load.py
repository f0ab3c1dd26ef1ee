"""The tokenizer that a recipe names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pretrain.data.tokenizers.bytes import ByteTokenizer
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.data.tokenizers.files import NamesTokenizer
    from pretrain.data.tokenizers.tokenizer import Tokenizer


def load_tokenizer(section: NamesTokenizer) -> Tokenizer:
    """Load the tokenizer of a recipe's section `tokenizer`.

    Raises:
        DataError: a file that its type needs is not named, missing or broken.
    """
    if section.type == "bytes":
        return ByteTokenizer()
    # Reading GPT-2's files takes 0.2 s and the library 30 ms; who only counts bytes pays neither.
    from pretrain.data.tokenizers import bpe  # noqa: PLC0415

    if section.type == "gpt2":
        return bpe.gpt2(_path(section, "vocab_file"), _path(section, "merge_file"))
    return bpe.huggingface(_path(section, "file"))


class Encoder(NamedTuple):
    """What encodes a corpus.

    Attributes:
        tokenizer: the fastest that is known to give the ids.
        reference: loads the one that defines them; None if `tokenizer` does. A fast one lets other threads run.
    """

    tokenizer: Tokenizer
    reference: Callable[[], Tokenizer] | None


def load_encoder(section: NamesTokenizer, *, reference_only: bool = False) -> Encoder:
    """Load gigatoken's form of the tokenizer that `section` names, where there is one, unless `reference_only`.

    Raises:
        DataError: as `load_tokenizer`.
    """
    if section.type == "bytes" or reference_only:
        return Encoder(load_tokenizer(section), None)
    from pretrain.data.tokenizers import fast  # noqa: PLC0415  who does not encode much does not need it

    if section.type == "gpt2":
        found = fast.gpt2(_path(section, "vocab_file"), _path(section, "merge_file"))
    else:
        found = fast.huggingface(_path(section, "file"))
    return Encoder(found, partial(load_tokenizer, section)) if found else Encoder(load_tokenizer(section), None)


def _path(section: NamesTokenizer, key: str) -> Path:
    given = getattr(section, key)
    if given is None:
        needed = "vocab_file and merge_file" if section.type == "gpt2" else "file"
        msg = f"a tokenizer of type {section.type} needs {needed}; {key} is not given."
        raise DataError(msg)
    return Path(given)
