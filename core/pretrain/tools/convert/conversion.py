"""Convert a checkpoint of any format into another; verify one, and compare it with another."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import checksums, torch_file
from pretrain.checkpoint.checksums import WHOLE, Share
from pretrain.checkpoint.identity import require_same_tokenizer, structure
from pretrain.errors import CheckpointError
from pretrain.stores.local_copies import shown_place
from pretrain.tools.convert.lazy_tensor import cast, with_rows
from pretrain.tools.convert.model_weights import EMBEDDING, EXPERT_BIAS, OUTPUT, FileLayout
from pretrain.tools.convert.registry import WITH_LAYOUT, WRITE, read_weights
from pretrain.tools.convert.target import require_free, write_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import ModelWeights

_JOURNAL_VERSION = 2  # a new one when an unfinished target cannot be continued by another version of this program
_WORKERS = 4  # threads that verify
_UNVERIFIED = {".safetensors", ".distcp"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """Options of a conversion."""

    format: str  # a key of `WRITE`
    dtype: str | None = None  # of all weights, a key of `DTYPES`; None: the source's
    layout: FileLayout = field(default_factory=FileLayout)
    tokenizer: tuple[Path, ...] = ()  # files that go into formats that have a tokenizer; none: the source's, if any
    loaded: Tokenizer | None = None  # of these files
    is_of_run: bool = False  # the run's recipe names it, not the user: it must be the one of the training
    given: Mapping[str, Any] = field(default_factory=dict)  # settings of the model that the source does not contain


def convert(
    source: Path,
    path: Path,
    options: ConvertOptions,
    *,
    force: bool = False,
    begin: Callable[[int, str], Callable[[int], None]] = WHOLE.begin,
) -> ModelWeights:
    """Write a checkpoint in another format; called again after an interruption it goes on.

    `begin` is called with the bytes to verify, then with those to write; what it returns is called with those done.
    """
    _require_layout(options)
    require_free(path, force=force)
    weights = read_weights(source, options.given, Share(begin=begin))
    there, here = path.resolve(), weights.path.resolve()
    if there in {source.resolve(), *here.parents, here} or here in there.parents:
        msg = f"{path} contains the source or is inside it.\nName a new folder as the target."
        raise CheckpointError(msg)
    target = WRITE[options.format](_as_asked(weights, options), options.layout)
    written = begin(sum(file.nbytes for file in target.files), "written")
    write_target(target, path, _identity(weights, options), force=force, written=written)
    return weights


def _as_asked(weights: ModelWeights, options: ConvertOptions) -> ModelWeights:
    if (tokenizer := options.loaded) is not None:
        if not weights.fits(tokenizer.vocab_size):
            msg = f"{options.tokenizer[0]} has {tokenizer.vocab_size:,} tokens, and {shown_place(weights.path)} has "
            msg += f"{weights.tokens:,}, which padding does not explain.\nName the model's tokenizer by --tokenizer."
            raise CheckpointError(msg)
        if options.is_of_run:
            place, remedy = shown_place(weights.path), "Restore that file, or name it by --tokenizer."
            require_same_tokenizer(options.tokenizer, tokenizer.fingerprint, weights.fingerprint, place, remedy)
        weights = replace(
            weights,
            vocab_size=tokenizer.vocab_size,
            tokenizer=options.tokenizer,
            fingerprint=tokenizer.fingerprint,
        )
    if options.dtype is None:
        return weights
    dtype = DTYPES[options.dtype]
    tensors = {
        name: tensor if name.endswith(EXPERT_BIAS) else cast(tensor, dtype, name)
        for name, tensor in weights.tensors.items()
    }
    return replace(weights, tensors=tensors)


def _require_layout(options: ConvertOptions) -> None:
    known = WITH_LAYOUT.get(options.format, ())
    for name, size in (("tensor", options.layout.tensor), ("pipeline", options.layout.pipeline)):
        if size > 1 and name not in known:
            msg = f"--{name} {size} has no effect on files of {options.format}.\nLeave it out."
            raise CheckpointError(msg)


def _identity(weights: ModelWeights, options: ConvertOptions) -> str:
    """Return a hash of source and options; only the same one continues an unfinished target."""
    files = sorted(
        (str(file.relative_to(weights.path)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in weights.path.rglob("*")
        if file.is_file()
    )
    tokenizer = [str(file) for file in options.tokenizer]
    sizes = [options.layout.tensor, options.layout.pipeline]
    asked = [options.format, options.dtype, sizes, tokenizer, dict(options.given)]
    described = json.dumps([_JOURNAL_VERSION, str(weights.path.resolve()), files, *asked], default=str)
    return hashlib.sha256(described.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of two weights."""

    name: str
    largest: float  # absolute, computed in fp32 at least; nan where one has numbers that are not finite
    shape: str | None = None  # None if the shapes are equal, else both, as text


def files_without_checksums(weights: ModelWeights) -> list[Path]:
    """Verify the files of torch.save, also optimizer and other state; return those without checksums."""
    if checksums.are_there(weights.path):
        return []
    files = [file for file in sorted(weights.path.rglob("*")) if file.is_file()]
    unread = {file for file in files if file.suffix in {".pt", ".bin"} and not torch_file.require_readable(file)}
    return [file for file in files if file in unread or file.suffix in _UNVERIFIED]


def not_finite(weights: ModelWeights, read: Callable[[int], None] = lambda count: None) -> list[str]:  # noqa: ARG005
    """Read all weights; return the names of those with a number that is not finite."""

    def is_finite(tensor: LazyTensor) -> bool:
        finite = True
        for block in tensor.blocks():
            finite = finite and bool(block.isfinite().all())
            read(block.nbytes)
        return finite

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = pool.map(is_finite, weights.tensors.values())
        return [name for name, finite in zip(weights.tensors, found, strict=True) if not finite]


def differences(
    ours: ModelWeights,
    theirs: ModelWeights,
    read: Callable[[int], None] = lambda count: None,  # noqa: ARG005
) -> list[Difference]:
    """Compare two models weight by weight; the vocabulary's padding does not count where its size is known."""
    if missing := sorted(set(ours.tensors) ^ set(theirs.tensors)):
        owner = ours if missing[0] in ours.tensors else theirs
        msg = f"the models differ: only {owner.path} has {missing[0]} ({len(missing)} such weights)."
        raise CheckpointError(msg)
    size = min(ours.tokens, theirs.tokens)
    if (ours.vocab_size, theirs.vocab_size) == (None, None):
        size = max(ours.rows, theirs.rows)

    def compare(name: str) -> Difference:
        one, other = ours.tensors[name], theirs.tensors[name]
        if name in {EMBEDDING, OUTPUT}:
            one, other = (with_rows(each, min(each.shape[0], size)) for each in (one, other))
        if one.shape != other.shape:
            return Difference(name, float("inf"), f"{list(one.shape)} and {list(other.shape)}")
        return Difference(name, _largest(one, other, read))

    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(compare, ours.tensors))


def settings_that_differ(ours: ModelWeights, theirs: ModelWeights) -> dict[str, tuple[Any, Any]]:
    """Return the settings of the models that differ, with both values."""
    one, other = structure(ours.model), structure(theirs.model)
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def _largest(one: LazyTensor, other: LazyTensor, read: Callable[[int], None]) -> float:
    if one.by_rows and not other.by_rows:  # whose rows are read together
        one, other = other, one
    largest, first = 0.0, 0
    for block in one.blocks():
        theirs = other.rows(first, first + block.shape[0])
        first += block.shape[0]
        if not (block.dtype == theirs.dtype and torch.equal(block, theirs)):
            wide = torch.promote_types(torch.promote_types(block.dtype, theirs.dtype), torch.float32)
            found = (block.to(wide) - theirs.to(wide)).abs().max().item()
            largest = found if found != found else max(largest, found)  # noqa: PLR0124  nan
        read(block.nbytes)
    return largest
