"""Build the datasets of `data.index: native`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.samples.checks import check_token_files, split_bounds
from pretrain.data.samples.native.masks_and_positions import SampleFormat
from pretrain.data.samples.native.split import NativeSamples
from pretrain.data.samples.native.windows import Windows
from pretrain.data.token_files.reading import TokenFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.samples.counts import SampleCounts
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe import Recipe


def native_samples(
    recipe: Recipe, tokenizer: Tokenizer, parts: Sequence[tuple[str, float]], samples: SampleCounts, *, check: bool
) -> list[NativeSamples | None]:
    """Return the samples of training, validation and test; None for a split that is not read.

    Only a bounded part of each file is read, and no rank waits for another.

    Args:
        recipe: uses its section `data`, `model.seq_length` and `train.seed`.
        tokenizer: the one the data was made with.
        parts: path and weight of every token file.
        samples: number of samples that are read from each split.
        check: check ids, tokenizer and splits; ranks that read no samples leave that to the others.

    Raises:
        DataError: a token file is missing, damaged, made with another tokenizer, or too small for its split.
    """
    seq_length, seed, data = recipe.model.seq_length, recipe.train.seed, recipe.data
    bounds = split_bounds(data)
    needed = (samples.train, samples.valid, samples.test)
    for path, _ in parts if check else ():
        check_token_files(path, tokenizer, bounds, needed, seq_length)
    format_ = SampleFormat(
        eod=tokenizer.eod,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
    )
    opened = [(TokenFile.open(path), weight) for path, weight in parts]
    files = [(file, file.identity(), weight) for file, weight in opened]

    def split(share: tuple[float, float], length: int) -> NativeSamples:
        windows = [(Windows(file, name, share, seq_length, seed), weight) for file, name, weight in files]
        return NativeSamples.of(windows, format_, length)

    return [split(share, length) if length else None for share, length in zip(bounds, needed, strict=True)]
