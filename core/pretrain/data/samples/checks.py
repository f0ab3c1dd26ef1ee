"""Check the data against the recipe, before anything slow or collective happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import try_to_write
from pretrain.data.token_files.reading import TokenFile, check_ids, split_range
from pretrain.data.token_files.tokenizer_stamp import check_stamp
from pretrain.data.tokenizers.tokenizer import end_token
from pretrain.errors import DataError
from pretrain.stores.address import is_address
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe.sections.data import DataSection

_SPLITS = ("train", "valid", "test")
_FEW = 30  # documents, of which a default split leaves one for validation


def check_token_files(
    prefix: str,
    tokenizer: Tokenizer,
    data: DataSection,
    needed: Sequence[int],
    seq_length: int,
) -> TokenFile:
    """Check one pair of token files against the recipe's tokenizer, and the samples needed of each of its splits."""
    for key in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask"):
        if getattr(data, key):
            end_token(tokenizer, f"data.{key}")
    tokens = TokenFile.open(prefix)
    check_stamp(prefix, tokenizer)
    check_ids(tokens, tokenizer.vocab_size)
    for name, bounds, samples in zip(_SPLITS, data.bounds, needed, strict=True):
        if samples:
            _check_split(tokens, name, bounds, data, seq_length)
    return tokens


def samples_of_files(data: DataSection, needed: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield every token file, once, with the samples needed of each split, 0 for one that does not read the file."""
    for path in dict.fromkeys(data.token_files):
        reads = [any(part.path == path for part in blend) for blend in data.splits]
        yield path, [number if here else 0 for number, here in zip(needed, reads, strict=True)]


def cache_folder(data: DataSection) -> Path:
    """Return the folder of the sample indices of `data.index: megatron`."""
    return Path(data.cache_path or Path(local_prefix(data.token_files[0])).parent / "cache")


def check_cache(data: DataSection) -> None:
    """Check that sample indices can be written, where the recipe has any and none have been written before."""
    is_beside_copy = data.cache_path is None and is_address(data.token_files[0])
    if data.index != "megatron" or is_beside_copy:
        return
    folder = cache_folder(data)
    try:
        try_to_write(folder)
    except OSError as error:
        if any(folder.glob("*.npy")):  # perhaps those of this training, in a folder that several runs read
            return
        raise no_cache(folder, error) from error


def no_cache(folder: Path, error: OSError) -> DataError:
    """Return the error for a folder that takes no sample indices."""
    return DataError(f"the sample indices cannot be written to {folder}: {error}.\nSet data.cache_path.")


def _check_split(tokens: TokenFile, name: str, bounds: tuple[float, float], data: DataSection, seq_length: int) -> None:
    available = len(tokens.range_of(bounds, data.split_by))
    if available <= seq_length:
        documents = len(split_range(bounds, tokens.lengths.size))
        of = f"{documents} of {tokens.lengths.size} documents with " if data.split_by == "documents" else ""
        msg = (
            f"{tokens.prefix}: split '{name}' has {of}{available} tokens, fewer than one sample of {seq_length} + 1.\n"
            f"{_remedy(tokens, data)}"
        )
        raise DataError(msg)


def _remedy(tokens: TokenFile, data: DataSection) -> str:
    if data.own_files is not None:
        return "Give more text, or a smaller model.seq_length."
    if data.split_by == "documents" and tokens.lengths.size < _FEW:
        return (
            f"data.split: {data.split} divides documents; to divide tokens: data.split_by: tokens, data.index: native."
        )
    return "Give more text, another data.split or a smaller model.seq_length; evaluation.interval: 0 reads only train."
