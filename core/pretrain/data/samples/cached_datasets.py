"""megatron-core's datasets, with an index cache that survives rebuilt data, killed runs and worker processes.

megatron-core names a cache file by a hash of settings and path, not of the data: here it covers the files. A truncated
cache file of a killed run is written again. A data worker receives the path of the cache, not its content.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.datasets.utils import Split
from torch import distributed

from pretrain.atomic_files import replacing
from pretrain.data.samples.megatron_order import MegatronOrder, blending_indices
from pretrain.data.token_files.mapping import mapped
from pretrain.data.token_files.reading import TokenFile, split_range
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INDICES = ("document_index", "sample_index", "shuffle_index")
_BLEND_INDICES = ("dataset_index", "dataset_sample_index")
# seconds since the last write: far more than the clocks of two machines differ, or than a write can block
_ABANDONED_AFTER = 86_400.0


class Sequences:
    """The sequences of a pair of token files, as GPTDataset reads them; the files are mapped at the first access."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @cached_property
    def file(self) -> TokenFile:
        """The files."""
        return TokenFile.open(self._prefix)

    @property
    def sequence_lengths(self) -> Any:
        """Tokens of each sequence, [sequences] int32."""
        return self.file.lengths

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Return `length` ids of a sequence from one of its tokens on; None: up to its end."""
        begin, size = self.file.tokens_before(idx), int(self.file.lengths[idx])
        return self.file.tokens[begin + offset : begin + (size if length is None else offset + int(length))]

    def __getstate__(self) -> dict[str, Any]:
        return {"_prefix": self._prefix}


class CachedGPTDataset(GPTDataset):  # type: ignore[misc]
    """Samples of one pair of token files."""

    def _build_document_sample_shuffle_indices(self) -> Any:
        self.unique_identifiers["data"] = self.config.identities[self.dataset_path]
        self.unique_description = json.dumps(
            self.unique_identifiers, indent=4, default=lambda described: described.unique_identifiers
        )
        self.unique_description_hash = hashlib.md5(self.unique_description.encode(), usedforsecurity=False).hexdigest()
        files = _cache_files(self, self.index_split, _INDICES)
        return _mapped(files, self._build, lambda: tuple(map(_loaded, files[:-1])))

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Sequences:  # noqa: ARG004  megatron-core's signature
        """Return the sequences of token files; megatron-core's IndexedDataset keeps three files open."""
        return Sequences(dataset_path)

    def _query_document_sample_shuffle_indices(self, idx: int) -> Any:
        if self.shuffle_index is None:  # in a data worker
            for name in _INDICES:
                setattr(self, name, _loaded(Path(getattr(self, f"path_to_{name}"))))
        return super()._query_document_sample_shuffle_indices(idx)

    def _build(self, files: list[Path]) -> None:
        self.dataset.file.expect_index()
        order = MegatronOrder(
            lengths=self.dataset.sequence_lengths,
            documents=self.indices,
            num_samples=self.num_samples,
            seq_length=self.config.sequence_length,
            seed=self.config.random_seed,
        )
        _write(files, order.arrays(), self.unique_description)

    def __getstate__(self) -> dict[str, Any]:
        files = _cache_files(self, self.index_split, _INDICES)
        unset = dict.fromkeys(
            (*_INDICES, "indices", "cached_attention_mask", "cached_loss_mask", "cached_position_ids")
        )
        return self.__dict__ | unset | _lazy_paths(files, _INDICES) | {"masks_and_position_ids_are_cached": False}


class CachedBlendedDataset(BlendedDataset):  # type: ignore[misc]
    """A weighted mixture of `CachedGPTDataset`s."""

    def _build_indices(self) -> Any:
        """Save whole files; BlendedDataset._build_indices overwrites files that another run may have mapped."""
        files = _cache_files(self, self.split, _BLEND_INDICES)
        return _mapped(files, self._build, lambda: tuple(np.load(file, mmap_mode="r") for file in files[:-1]))

    def _build(self, files: list[Path]) -> None:
        _write(files, iter(blending_indices(self.weights, self.size)), self.unique_description)

    def __getstate__(self) -> dict[str, Any]:
        files = _cache_files(self, self.split, _BLEND_INDICES)
        return self.__dict__ | dict.fromkeys(_BLEND_INDICES) | _lazy_paths(files, _BLEND_INDICES)


class CachedDatasetBuilder(BlendedMegatronDatasetBuilder):  # type: ignore[misc]
    """megatron-core's builder, with `CachedBlendedDataset`, and with splits as ranges."""

    def _build_megatron_dataset_splits(
        self, dataset_path: str, split: Any, sizes: list[int], synchronize_ranks: bool = True
    ) -> Any:
        """Build the datasets of one pair of token files; megatron-core would list the number of every document."""
        if distributed.is_initialized() and not self.is_built_on_rank():
            return super()._build_megatron_dataset_splits(dataset_path, split, sizes, synchronize_ranks)
        low_level = self.cls.build_low_level_dataset(dataset_path, self.config)
        number = self.cls.numel_low_level_dataset(low_level)
        return [
            self.build_generic_dataset(
                self.cls,
                self.is_built_on_rank,
                synchronize_ranks,
                low_level,
                dataset_path,
                split_range(bounds, number),
                size,
                name,
                self.config,
            )
            if bounds is not None
            else None
            for bounds, size, name in zip(split, sizes, Split, strict=True)
        ]

    @staticmethod
    def build_generic_dataset(cls: Any, *args: Any) -> Any:  # noqa: PLW0211  megatron-core's signature
        """Build one dataset on the ranks that need it, rank 0 before the others."""
        wanted = CachedBlendedDataset if cls is BlendedDataset else cls
        return BlendedMegatronDatasetBuilder.build_generic_dataset(wanted, *args)


def _loaded(file: Path) -> Any:
    """Map a file that numpy has saved, as `np.load` with a `mmap_mode` does, which keeps it open."""
    with file.open("rb") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        begin = stream.tell()
    end = begin + math.prod(shape) * dtype.itemsize
    return mapped(file)[begin:end].view(dtype).reshape(shape)


def _is_first() -> bool:
    return not distributed.is_initialized() or bool(distributed.get_rank() == 0)


def _save(file: Path, array: Any) -> None:
    """Write without waiting for the disk: a file that an outage truncates is made again."""
    for left in file.parent.glob(f".{file.name}.*.partial"):  # of killed runs; a younger one may be in use
        with suppress(FileNotFoundError):  # another run may remove it too
            if time.time() - left.stat().st_mtime > _ABANDONED_AFTER:
                left.unlink()
    with replacing(file, error=None, durable=False) as stream:
        np.save(stream, array)


def _cache_files(dataset: Any, split: Any, names: tuple[str, ...]) -> list[Path]:
    """Return the paths that megatron-core gives the cache of a dataset, the description last."""
    begin = f"{dataset.unique_description_hash}-{type(dataset).__name__}-{split.name}"
    folder = Path(dataset.config.path_to_cache)
    return [*(folder / f"{begin}-{name}.npy" for name in names), folder / f"{begin}-description.txt"]


def _lazy_paths(files: list[Path], names: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes with the paths from which megatron-core loads missing indices."""
    return {f"path_to_{name}": str(file) for name, file in zip(names, files, strict=False)}


def _write(files: list[Path], arrays: Iterator[Any], description: str) -> None:
    """Save arrays as they are made, and the description after them."""
    *paths, last = files
    last.parent.mkdir(parents=True, exist_ok=True)
    for file in paths:  # zip would keep an array while the next one is made
        _save(file, next(arrays))
    last.write_text(description)


def _mapped(files: list[Path], build: Callable[[list[Path]], None], read: Callable[[], Any]) -> Any:
    """Let rank 0 build missing files, and map all files; damaged ones are built again."""

    def made() -> Any:
        if _is_first() and not all(file.is_file() for file in files):
            build(files)
        return read()

    try:
        return made()
    except (ValueError, EOFError):  # raised by numpy for a truncated file
        if not _is_first():
            raise
        for file in files:
            file.unlink(missing_ok=True)
        return made()
    except FileNotFoundError as exc:
        if _is_first():
            raise
        msg = (
            f"rank 0 has written the sample indices to {files[0].parent}, which this machine cannot see.\n"
            "Set data.cache_path to a folder that all machines share, or data.index: native, which needs none."
        )
        raise DataError(msg) from exc
