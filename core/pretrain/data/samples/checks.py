"""Check the data against the recipe, before anything slow or collective happens."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import try_to_write
from pretrain.data.token_files.reading import TokenFile, check_ids, split_range
from pretrain.data.token_files.tokenizer_stamp import check_stamp
from pretrain.errors import DataError
from pretrain.stores.address import is_address
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe.sections.data import DataSection

_SPLITS = ("train", "valid", "test")


def check_token_files(
    prefix: str,
    tokenizer: Tokenizer,
    split_matrix: Sequence[tuple[float, float] | None],
    needed: Sequence[int],
    seq_length: int,
) -> None:
    """Check one pair of token files against the recipe's tokenizer, and the samples needed of each split."""
    tokens = TokenFile.open(prefix)
    check_stamp(prefix, tokenizer)
    check_ids(tokens, tokenizer.vocab_size)
    for name, bounds, samples in zip(_SPLITS, split_matrix, needed, strict=True):
        if samples:
            _check_split(tokens, name, bounds or (0.0, 0.0), seq_length)


def split_bounds(data: DataSection) -> list[tuple[float, float]]:
    """Return begin and end of training, validation and test, as a share of the sequences."""
    ends = list(accumulate(data.shares))
    return list(zip([0.0, *ends], ends, strict=False))


def cache_folder(data: DataSection) -> Path:
    """Return the folder of the sample indices of `data.index: megatron`."""
    return Path(data.cache_path or Path(local_prefix(data.paths[0])).parent / "cache")


def check_cache(data: DataSection) -> None:
    """Check that sample indices can be written, where the recipe has any and none have been written before."""
    if data.index != "megatron" or (data.cache_path is None and is_address(data.paths[0])):  # beside this node's copy
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


def _check_split(tokens: TokenFile, name: str, bounds: tuple[float, float], seq_length: int) -> None:
    sequences = split_range(bounds, tokens.lengths.size)
    available = tokens.tokens_in(sequences)
    if available <= seq_length:
        msg = (
            f"{tokens.prefix}: split '{name}' has {len(sequences)} of {tokens.lengths.size} documents with {available} "
            f"tokens, fewer than one sample of {seq_length} + 1.\n"
            "Give more text, another data.split or a smaller model.seq_length; evaluation.interval: 0 reads only train."
        )
        raise DataError(msg)
