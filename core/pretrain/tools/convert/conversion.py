"""Convert a checkpoint of any format into another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.checksums import WHOLE, Share
from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import cast
from pretrain.tools.convert.registry import WITH_LAYOUT, WRITE, read_weights
from pretrain.tools.convert.target import TargetLayout, require_free, write_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.tools.convert.model_weights import ModelWeights


_JOURNAL_VERSION = 2
"""A new one when an unfinished target cannot be continued by another version of this program."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetTokenizer:
    """A tokenizer that goes with the weights.

    Attributes:
        files: of the tokenizer.
        vocab_size: its tokens.
    """

    files: tuple[Path, ...]
    vocab_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """Options of a conversion.

    Attributes:
        format: a key of `WRITE`.
        dtype: of all weights, a key of `DTYPES`; None: the source's.
        layout: division among ranks.
        tokenizer: gives the size of the vocabulary and goes into formats that have one; None: the source's, if any.
        given: settings of the section `model` that the source does not tell.
    """

    format: str
    dtype: str | None = None
    layout: TargetLayout = field(default_factory=TargetLayout)
    tokenizer: TargetTokenizer | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


def convert(
    source: Path,
    path: Path,
    options: ConvertOptions,
    *,
    force: bool = False,
    begin: Callable[[int, str], Callable[[int], None]] = WHOLE.begin,
) -> ModelWeights:
    """Write a checkpoint in another format; called again after an interruption it goes on.

    Args:
        source: folder of a run, of its checkpoints, or of one checkpoint.
        path: folder of the target, which must not exist.
        options: what it should be.
        force: replace a target that exists.
        begin: is called with the bytes that are to be verified, and then with those to be written; it returns what is
            called for those that were.

    Returns:
        the weights as they were read.

    Raises:
        CheckpointError: the source cannot be read, or the format cannot hold it, or the target cannot be written.
        DamageError: a file of the source is damaged.
    """
    _require_layout(options)
    require_free(path, force=force)
    weights = read_weights(source, options.given, Share(begin=begin))
    there, here = path.resolve(), weights.path.resolve()
    if there in {source.resolve(), *here.parents, here} or here in there.parents:
        msg = f"{path} holds the source, or lies in it.\nName a new folder as the target."
        raise CheckpointError(msg)
    target = WRITE[options.format](_as_asked(weights, options), options.layout)
    written = begin(sum(file.nbytes for file in target.files), "written")
    write_target(target, path, _identity(weights, options), force=force, written=written)
    return weights


def _as_asked(weights: ModelWeights, options: ConvertOptions) -> ModelWeights:
    if options.tokenizer is not None:
        _require_vocabulary(weights, options.tokenizer)
        weights = replace(weights, vocab_size=options.tokenizer.vocab_size, tokenizer=options.tokenizer.files)
    if options.dtype is None:
        return weights
    dtype = DTYPES[options.dtype]
    return replace(weights, tensors={name: cast(tensor, dtype, name) for name, tensor in weights.tensors.items()})


def _require_vocabulary(weights: ModelWeights, tokenizer: TargetTokenizer) -> None:
    if not weights.fits(tokenizer.vocab_size):
        msg = (
            f"--tokenizer: {tokenizer.files[0]} has {tokenizer.vocab_size:,} tokens, and {weights.path} has "
            f"{weights.tokens:,}, which padding does not explain.\nName the tokenizer of this model."
        )
        raise CheckpointError(msg)


def _require_layout(options: ConvertOptions) -> None:
    """Refuse sizes that the format's files do not depend on."""
    known = WITH_LAYOUT.get(options.format, ())
    for name, size in (("tensor", options.layout.tensor), ("pipeline", options.layout.pipeline)):
        if size > 1 and name not in known:
            msg = (
                f"--{name} {size} has no effect on files of {options.format}: they do not depend on it.\nLeave it out."
            )
            raise CheckpointError(msg)


def _identity(weights: ModelWeights, options: ConvertOptions) -> str:
    """Return what an unfinished target must agree in with a call that goes on with it."""
    files = sorted(
        (str(file.relative_to(weights.path)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in weights.path.rglob("*")
        if file.is_file()
    )
    tokenizer = [str(file) for file in options.tokenizer.files] if options.tokenizer else []
    sizes = [options.layout.tensor, options.layout.pipeline]
    described = [
        _JOURNAL_VERSION,
        str(weights.path.resolve()),
        files,
        options.format,
        options.dtype,
        sizes,
        tokenizer,
        dict(options.given),
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()
