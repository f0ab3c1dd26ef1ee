"""Build a recipe's datasets over its token files: megatron-core's GPTDataset and its blends, or the native ones.

Importing this module imports megatron.core: install the bridge first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

from pretrain.data.samples.cached_datasets import CachedDatasetBuilder, CachedGPTDataset
from pretrain.data.samples.checks import cache_folder, check_token_files, no_cache, split_bounds
from pretrain.data.samples.megatron_order import blend_surplus
from pretrain.data.samples.native_samples import NativeSamples, SampleFormat, Windows
from pretrain.data.token_files.reading import TokenFile
from pretrain.errors import DataError
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.needed import SampleCounts
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Datasets:
    """Map-style torch datasets; None for a split that is not used, and on ranks that read no data.

    With `data.index: native` every rank has them, because a checkpoint stores the samples read of each file. A sample
    is a dict of `tokens`, `labels` and `position_ids` [seq_length] int64, and `loss_mask` [seq_length] float32; what
    keeps documents apart follows from the tokens (`sequence_pieces.document_ends`).
    """

    train: Any | None
    valid: Any | None
    test: Any | None


@dataclass(frozen=True, slots=True)
class _TokenizerFacts:
    """Facts about a tokenizer that GPTDataset needs; small, because they are sent to every data worker."""

    vocab_size: int
    eod: int
    unique_identifiers: dict[str, str]


def build_datasets(
    recipe: Recipe, tokenizer: Tokenizer, samples: SampleCounts, *, on_this_rank: bool = True
) -> Datasets:
    """Check the token files of `data.path` or `data.blend`, and build the datasets of every split that is needed.

    Every rank calls it: with `data.index: megatron` rank 0, which reads data, builds the index cache, then the others
    map it; with `native` no rank waits. The order of the samples is Megatron-LM's. It depends only on the data,
    `train.seed`, `model.seq_length`, the split and the number of samples; with `native`, not on that number either.
    """
    parts = _parts(recipe)
    if recipe.data.index == "native":
        train, valid, test = native_samples(recipe, tokenizer, parts, samples, check=on_this_rank)
        return Datasets(train=train, valid=valid, test=test)
    config = _config(recipe, tokenizer, parts, samples)
    needed = (samples.train, samples.valid, samples.test)
    seq_length = recipe.model.seq_length
    for path, _ in parts if on_this_rank else ():
        check_token_files(path, tokenizer, config.split_matrix, needed, seq_length)
    if on_this_rank:
        config.mid_level_dataset_surplus = blend_surplus(parts, config.split_matrix, needed, seq_length)
    builder = CachedDatasetBuilder(CachedGPTDataset, list(needed), lambda: on_this_rank, config)
    try:
        train, valid, test = builder.build()
    except DataError:
        raise
    except Exception as exc:  # megatron-core raises OSError, or a bare Exception from it
        cause = exc if isinstance(exc, OSError) else exc.__cause__
        if not isinstance(cause, OSError):
            raise
        raise no_cache(Path(config.path_to_cache), cause) from exc
    return Datasets(train=train, valid=valid, test=test)


def _parts(recipe: Recipe) -> list[tuple[str, float]]:
    if recipe.data.path is not None:
        return [(local_prefix(recipe.data.path), 1.0)]
    return [(local_prefix(part.path), part.weight) for part in recipe.data.blend or ()]


def _config(recipe: Recipe, tokenizer: Tokenizer, parts: list[tuple[str, float]], samples: SampleCounts) -> Any:
    data = recipe.data
    paths, weights = [path for path, _ in parts], [weight for _, weight in parts]
    facts = _TokenizerFacts(tokenizer.vocab_size, tokenizer.eod, {"fingerprint": tokenizer.fingerprint})
    config = GPTDatasetConfig(
        random_seed=recipe.train.seed,
        sequence_length=recipe.model.seq_length,
        blend=(paths, weights if len(parts) > 1 else None),
        split=data.split,
        path_to_cache=str(cache_folder(data)),
        tokenizer=facts,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=False,
        eod_mask_loss=data.eod_mask_loss,
        create_attention_mask=False,
    )
    # Building a split without documents never ends (GPTDataset._get_num_epochs), even if it is not read.
    for number, needed in enumerate((samples.train, samples.valid, samples.test)):
        if not needed:
            config.split_matrix[number] = None
    return config


def native_samples(
    recipe: Recipe, tokenizer: Tokenizer, parts: Sequence[tuple[str, float]], samples: SampleCounts, *, check: bool
) -> list[NativeSamples | None]:
    """Return the samples of each split, None for one that is not read; only a bounded part of each file is read."""
    seq_length, seed, data = recipe.model.seq_length, recipe.train.seed, recipe.data
    bounds = split_bounds(data)
    needed = (samples.train, samples.valid, samples.test)
    for path, _ in parts if check else ():
        check_token_files(path, tokenizer, bounds, needed, seq_length)
    format_ = SampleFormat(
        eod=tokenizer.eod,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
    )
    opened = [(TokenFile.open(path), weight) for path, weight in parts]
    files = [(file, file.identity(), weight) for file, weight in opened]

    def split(share: tuple[float, float], length: int) -> NativeSamples:
        windows = [(Windows(file, name, share, seq_length, seed), weight) for file, name, weight in files]
        return NativeSamples.of(windows, format_, length)

    return [split(share, length) if length else None for share, length in zip(bounds, needed, strict=True)]
