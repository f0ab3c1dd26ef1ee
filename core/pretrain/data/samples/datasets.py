"""Build a recipe's datasets over its token files: megatron-core's GPTDataset and its blends, or the native ones.

Importing this module imports megatron.core: install the bridge first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

from pretrain.data.samples.cached_datasets import CachedDatasetBuilder, CachedGPTDataset
from pretrain.data.samples.checks import cache_folder, check_token_files, no_cache, samples_of_files
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
    from pretrain.recipe.sections.data import BlendPart


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
    eod: int | None
    unique_identifiers: dict[str, str]


def build_datasets(
    recipe: Recipe, tokenizer: Tokenizer, samples: SampleCounts, *, on_this_rank: bool = True
) -> Datasets:
    """Check the token files of section `data`, and build the datasets of every split that is needed.

    Every rank calls it: with `data.index: megatron` rank 0, which reads data, builds the index cache, then the others
    map it; with `native` no rank waits. The order of the samples is Megatron-LM's. It depends only on the data,
    `train.seed`, `model.seq_length`, the split and the number of samples; with `native`, not on that number either.
    """
    needed = (samples.train, samples.valid, samples.test)
    for path, of_file in samples_of_files(recipe.data, needed) if on_this_rank else ():
        check_token_files(local_prefix(path), tokenizer, recipe.data, of_file, recipe.model.seq_length)
    if recipe.data.index == "native":
        train, valid, test = _native(recipe, tokenizer, needed)
        return Datasets(train=train, valid=valid, test=test)
    config = _config(recipe, tokenizer, needed)
    if on_this_rank:
        config.mid_level_dataset_surplus = blend_surplus(recipe.data, needed, recipe.model.seq_length)
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


def _blend(parts: Sequence[BlendPart]) -> tuple[list[str], list[float] | None]:
    """Return a blend as megatron-core takes it."""
    paths = [local_prefix(part.path) for part in parts]
    return paths, [part.weight for part in parts] if len(parts) > 1 else None


def _config(recipe: Recipe, tokenizer: Tokenizer, needed: Sequence[int]) -> Any:
    data = recipe.data
    own = None if data.own_files is None else [_blend(each) if each else None for each in data.own_files]
    facts = _TokenizerFacts(tokenizer.vocab_size, tokenizer.eod, {"fingerprint": tokenizer.fingerprint})
    config = GPTDatasetConfig(
        random_seed=recipe.train.seed,
        sequence_length=recipe.model.seq_length,
        blend=_blend(data.common_files) if own is None else None,
        blend_per_split=own,
        split=data.split if own is None else None,
        path_to_cache=str(cache_folder(data)),
        tokenizer=facts,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=False,
        eod_mask_loss=data.eod_mask_loss,
        create_attention_mask=False,
    )
    # Building a split without documents never ends (GPTDataset._get_num_epochs), even if it is not read.
    for number, samples in enumerate(needed):
        if not samples:
            (config.split_matrix if own is None else config.blend_per_split)[number] = None
    return config


def _native(recipe: Recipe, tokenizer: Tokenizer, needed: Sequence[int]) -> list[NativeSamples | None]:
    """Return the samples of each split, None for one that is not read; only a bounded part of each file is read."""
    data = recipe.data
    format_ = SampleFormat(
        eod=tokenizer.eod,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
    )
    files = {path: TokenFile.open(local_prefix(path)) for path in data.token_files}
    identities = {path: file.identity() for path, file in files.items()}

    def windows(path: str, bounds: tuple[float, float]) -> Windows:
        tokens = files[path].range_of(bounds, data.split_by)
        return Windows(files[path], identities[path], tokens, recipe.model.seq_length, recipe.train.seed)

    return [
        NativeSamples.of([(windows(part.path, bounds), part.weight) for part in parts], format_, length)
        if length
        else None
        for parts, bounds, length in zip(data.splits, data.bounds, needed, strict=True)
    ]
