"""Build a recipe's datasets over its token files: megatron-core's GPTDataset and its blends, or the native ones.

Importing this module imports megatron.core: install the bridge first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from torch import distributed

from pretrain.collectives import on_rank0
from pretrain.data.samples.cached_datasets import CachedDatasetBuilder, CachedGPTDataset
from pretrain.data.samples.checks import cache_folder, check_token_files, no_cache, samples_of_files
from pretrain.data.samples.megatron_order import blend_surplus
from pretrain.data.samples.native_samples import NativeSamples, SampleFormat, Windows
from pretrain.data.token_files.reading import for_each
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


@dataclass(frozen=True, slots=True)
class _FoundFile:
    """What the others need to know of a pair of token files."""

    identity: str
    splits: list[tuple[int, int]]  # first token and end of each split


@dataclass(frozen=True, slots=True)
class _Found:
    """What rank 0 tells the others."""

    files: list[_FoundFile]  # in the order of `data.token_files`: a host may have other paths
    surplus: float  # of `blend_surplus`; nothing with `data.index: native`

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Tokenizer, needed: Sequence[int]) -> _Found:
        """Check the token files; only a bounded part of each is read."""
        data = recipe.data

        def look(path_and_samples: tuple[str, list[int]]) -> _FoundFile:
            path, of_file = path_and_samples
            file = check_token_files(local_prefix(path), tokenizer, data, of_file, recipe.model.seq_length)
            tokens = [file.range_of(bounds, data.split_by) for bounds in data.bounds]
            return _FoundFile(file.identity(), [(each.start, each.stop) for each in tokens])

        each = list(samples_of_files(data, needed))
        files = dict(zip([path for path, _ in each], for_each(each, look), strict=True))
        surplus = 0.0 if data.index == "native" else blend_surplus(data, needed, recipe.model.seq_length)
        return cls([files[path] for path in data.token_files], surplus)


def build_datasets(
    recipe: Recipe, tokenizer: Tokenizer, samples: SampleCounts, *, on_this_rank: bool = True
) -> Datasets:
    """Check the token files of section `data`, and build the datasets of every split that is needed.

    Every rank calls it. Rank 0 looks at the files, and tells the others what it has found, who open a file when they
    first read of it; with `data.index: megatron` it builds the index cache, which they map. The order of the samples
    is Megatron-LM's. It depends only on the data, `train.seed`, `model.seq_length`, the split and the number of
    samples; with `native`, not on that number either.
    """
    needed = (samples.train, samples.valid, samples.test)

    def look() -> _Found:
        return _Found.of(recipe, tokenizer, needed)

    found = on_rank0(look) if distributed.is_initialized() else look()
    if recipe.data.index == "native":
        train, valid, test = _native(recipe, tokenizer, needed, found)
        return Datasets(train=train, valid=valid, test=test)
    config = _config(recipe, tokenizer, needed)
    config.mid_level_dataset_surplus = found.surplus
    config.identities = {
        local_prefix(path): file.identity for path, file in zip(recipe.data.token_files, found.files, strict=True)
    }
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


def _native(recipe: Recipe, tokenizer: Tokenizer, needed: Sequence[int], found: _Found) -> list[NativeSamples | None]:
    """Return the samples of each split, None for one that is not read; no file is opened."""
    data = recipe.data
    format_ = SampleFormat(
        eod=tokenizer.eod,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
    )
    files = dict(zip(data.token_files, found.files, strict=True))

    def windows(path: str, split: int) -> Windows:
        file, tokens = files[path], range(*files[path].splits[split])
        return Windows(local_prefix(path), file.identity, tokens, recipe.model.seq_length, recipe.train.seed)

    return [
        NativeSamples.of([(windows(part.path, split), part.weight) for part in parts], format_, length)
        if length
        else None
        for split, (parts, length) in enumerate(zip(data.splits, needed, strict=True))
    ]
