"""Byte-pair encodings by gigatoken, for the features of a tokenizer.json that it encodes as the `tokenizers` library.

It is young: it silently ignores other features, which are left to the library. Tests compare each known feature, and
every build compares a sample (`pretrain.tools.corpus.reference_comparison`).
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from itertools import permutations
from string import ascii_letters
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
from gigatoken.gigatoken_rs import BPETokenizer, BytesSource, PadTruncate, load_hf_json

from pretrain.data.tokenizers.tokenizer import END_TOKENS, GPT2_END_TOKENS, LARGEST_VOCAB, fingerprint_of, is_panic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

_NO_IDS = np.zeros(0, np.uint32)
_PADDING = PadTruncate(0)  # pads to the longest row; the lengths of the rows are returned separately
_MOST_PADDING = 4  # largest ratio of a padded matrix to its content; needs a few calls per chunk, and bounds the memory
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(eq=False, repr=False)  # the content is a whole tokenizer.json
class FastTokenizer:
    """A tokenizer of gigatoken; encoding releases the GIL, and any number of threads may encode.

    gigatoken's own object serves one thread at a time ("Already borrowed"), so each encoding thread has one.
    """

    content: str
    codec: InitVar[BPETokenizer]
    vocab_size: int
    eod: int | None
    fingerprint: str
    added_tokens: Sequence[str]

    def __post_init__(self, codec: BPETokenizer) -> None:
        self._idle = deque([codec])

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Return the ids of each text, in few calls: after each one a thread waits for the GIL."""
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
        try:
            codec = self._idle.pop()
        except IndexError:
            codec = cast("BPETokenizer", load_hf_json(self.content))  # of the same type as the first one
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
        added = {token["content"]: token["id"] for token in description.get("added_tokens") or []}
        ids = description["model"]["vocab"] | added
        eod = next((ids[name] for name in end_tokens if name in ids), None)
        vocab_size = max(ids.values()) + 1
        if vocab_size > LARGEST_VOCAB or not is_compared(description):
            return None
        codec = load_hf_json(content)
    except BaseException as exc:
        if not (isinstance(exc, Exception) or is_panic(exc)):
            raise
        return None  # the reference reads it, or reports the error
    if not isinstance(codec, BPETokenizer):
        return None
    return FastTokenizer(content, codec, vocab_size, eod, fingerprint, list(added))


_COMPOSING = frozenset(ascii_letters + "<=>")  # ASCII characters that NFC can compose with a following character

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# pre-tokenizer splits of Llama 3 and Qwen 2; quoted from the "pre_tokenizer" of their files
SPLITS = (_WORDS + r"\p{N}{1,3}" + _OTHERS, _WORDS + r"\p{N}" + _OTHERS)

_ADDED = {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"}
_MODEL = {
    *("type", "vocab", "merges", "ignore_merges", "fuse_unk", "byte_fallback"),
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
}
_MUST_BE_OFF = ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix")


def is_compared(description: Mapping[str, Any]) -> bool:
    """Return whether gigatoken was compared with the library for every feature of the tokenizer."""
    normalizer, added = description.get("normalizer"), description.get("added_tokens") or []
    return (
        normalizer in (None, {"type": "NFC"})
        and _model_agrees(description["model"])
        and _division_agrees(description.get("pre_tokenizer"))
        and not _adds_tokens(description.get("post_processor"))
        and _ids_agree(added, description["model"]["vocab"])
        and all(_added_agrees(token, composes=normalizer is not None) for token in added)
        and not any(_conflict(one, other) for one, other in permutations(added, 2))
    )


def _model_agrees(model: Mapping[str, Any]) -> bool:
    return model.get("type") == "BPE" and model.keys() <= _MODEL and not any(map(model.get, _MUST_BE_OFF))


def _division_agrees(division: Any) -> bool:
    if division is None:
        return False
    if division.get("type") != "Sequence":
        return _is_byte_level(division, divides=True)
    first, *rest = division["pretokenizers"]
    split = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in SPLITS
    ]
    return first in split and len(rest) == 1 and _is_byte_level(rest[0], divides=False)


def _is_byte_level(part: Mapping[str, Any], *, divides: bool) -> bool:
    known = part.keys() <= {"type", "add_prefix_space", "trim_offsets", "use_regex"} and part["type"] == "ByteLevel"
    return known and part.get("add_prefix_space") is False and part.get("use_regex", True) is divides


def _adds_tokens(processor: Any) -> bool:
    """Return whether ids are added before or after those of the text, which gigatoken does not do."""
    if not processor or processor.get("type") == "ByteLevel":
        return False
    return processor.get("type") != "Sequence" or any(map(_adds_tokens, processor.get("processors") or []))


def _ids_agree(added: Sequence[Mapping[str, Any]], vocab: Mapping[str, int]) -> bool:
    """Return whether the library uses the ids of the file: it numbers new tokens from the vocabulary's size on."""
    new = [token["id"] for token in added if token["content"] not in vocab]
    known = all(vocab.get(token["content"], token["id"]) == token["id"] for token in added)
    distinct = len({token["content"] for token in added}) == len(added)
    return known and distinct and new == list(range(len(vocab), len(vocab) + len(new)))


def _added_agrees(token: Mapping[str, Any], *, composes: bool) -> bool:
    if not token.keys() <= _ADDED or not token["content"] or token.get("single_word"):
        return False
    # A token that is searched in the normalized text must not change there, whatever follows it.
    return not (composes and token["normalized"]) or (
        token["content"].isascii() and token["content"][-1] not in _COMPOSING
    )


def _conflict(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the library's search order matters: tokens that are not normalized first, with stripped spaces."""
    left, right = one["content"], other["content"]
    strips = one.get("lstrip") or one.get("rstrip")
    if strips and (right[0].isspace() or right[-1].isspace()):
        return True
    if one["normalized"] == other["normalized"]:
        return False
    return left in right or any(left.endswith(right[:size]) for size in range(1, len(right)))
