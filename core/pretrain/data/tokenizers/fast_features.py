"""Features of a tokenizer.json for which gigatoken gives the ids of the `tokenizers` library; tests compare each one.

Files with any other feature are left to the library, because gigatoken reads many of them and silently ignores the
feature.
"""

from __future__ import annotations

from itertools import permutations
from string import ascii_letters
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMPOSING = frozenset(ascii_letters + "<=>")
"""ASCII characters that NFC can compose with a following character."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = (_WORDS + r"\p{N}{1,3}" + _OTHERS, _WORDS + r"\p{N}" + _OTHERS)
"""Pre-tokenizer splits of Llama 3 and Qwen 2; quoted from the "pre_tokenizer" of their files."""

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
