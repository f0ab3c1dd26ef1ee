"""megatron-core's sharded format (torch_dist), as this program and Megatron-LM write it.

Every tensor is stored whole, in pieces; `.metadata` is their index, and common.pt has what all ranks share.

The optimizer is read where every state of a weight is a tensor of its own: without Megatron-LM's distributed optimizer,
and with --dist-ckpt-optim-fully-reshardable (sharded_state_dict of Float16OptimizerWithFloat16Params and
DistributedOptimizer). The distributed optimizer's default, dp_reshardable, keeps flat buckets instead, which only the
same layout can read.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import sharded_format
from pretrain.engine.optimizers.optimizer import STATES
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert import model_weights, weight_names
from pretrain.tools.convert.formats.megatron_settings import (
    GROUPS,
    groups_agree,
    schedule_of,
    settings_of,
    vocab_size_of,
)
from pretrain.tools.convert.lazy_tensor import LazyTensor
from pretrain.tools.convert.model_weights import (
    EMBEDDING,
    EXPERT_BIAS,
    MAIN,
    CheckpointSummary,
    FileLayout,
    ModelWeights,
    OptimizerState,
)
from pretrain.tools.convert.rank_parts import not_ours
from pretrain.tools.convert.stored import damaged, embedded_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

_STACKED = re.compile(r"decoder\.layers\.(?!\d)")  # weights of all layers, whose first dimension is the layer
_PREFIX = "optimizer.state."
# state in a key -> ours; the distributed optimizer has a name of its own for main weights
_STATES = {state: state for state in (*STATES, MAIN)} | {"param": MAIN}
_SCALER = ("scale", "growth_tracker", "hysteresis_tracker")
_DEEPEST = 8
_MOST_DIMENSIONS = 6  # a piece has 2 to the power of the dimensions corners
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes of a piece


@dataclass(frozen=True, kw_only=True)  # no slots: the weights are looked up once
class _Content:
    """Everything but the tensors of a sharded checkpoint."""

    kind: str  # of the files, with its version
    common: dict[str, Any]  # what all ranks share
    index: Metadata

    @property
    def is_ours(self) -> bool:
        return sharded_format.is_ours(self.common)

    @property
    def format(self) -> str:
        return "pretrain" if self.is_ours else "Megatron-LM, sharded"

    @cached_property
    def weights(self) -> dict[str, TensorStorageMetadata]:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  as in `index_of`

        entries = {key: entry for key, entry in self.index.state_dict_metadata.items() if sharded_format.is_weight(key)}
        return {key: entry for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(entry.size) for key, entry in self.weights.items()}

    @property
    def settings(self) -> dict[str, Any]:
        stacked = [shape[0] for name, shape in self.shapes.items() if _STACKED.match(name)]
        layers = max(stacked, default=weight_names.number_of_layers(self.shapes))
        args = weight_names.args_of(self.common)
        told = self.common["model"] if self.is_ours else weight_names.settings_of_args(args)
        return weight_names.model_of(self.shapes, layers) | told


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format."""
    content = _content_of(folder)
    if content is None:
        return None
    common, keys = content.common, content.index.state_dict_metadata
    layout = common.get("layout", {}) if content.is_ours else weight_names.args_of(common)
    return CheckpointSummary(
        path=folder,
        format=content.format,
        version=f"format {common['format']}" if content.is_ours else content.kind,
        iteration=sharded_format.iteration_told(common),
        model=content.settings,
        parameters=weight_names.count(content.shapes, 1),
        parts=FileLayout(
            tensor=int(layout.get("tensor_model_parallel_size") or 1),
            pipeline=int(layout.get("pipeline_model_parallel_size") or 1),
            expert=int(layout.get("expert_model_parallel_size") or 1),
        ),
        dtypes=model_weights.dtype_names(entry.properties.dtype for entry in content.weights.values()),
        contents=model_weights.contents(
            optimizer=any(key.startswith(sharded_format.OPTIMIZER) for key in keys),
            rng=any(key.startswith("rng") for key in keys),
            schedule=bool(common.get("schedule") or common.get("opt_param_scheduler")),
        ),
    )


def _content_of(folder: Path) -> _Content | None:
    if not (folder / sharded_format.BACKEND).is_file() or not (folder / sharded_format.COMMON).is_file():
        return None
    return _Content(kind=_kind(folder), common=sharded_format.common_of(folder), index=index_of(folder))


def _kind(folder: Path) -> str:
    try:
        backend = json.loads((folder / sharded_format.BACKEND).read_text(encoding="utf-8"))
        name, version = backend["sharded_backend"], backend["sharded_backend_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder / sharded_format.BACKEND, "is damaged: it names no sharded_backend and version") from error
    if name != "torch_dist":
        msg = f"{folder} is a sharded checkpoint of megatron-core of kind {name}; only torch_dist is read.\n"
        msg += "Load it in the Megatron-LM that wrote it, and save it with --ckpt-format torch_dist."
        raise CheckpointError(msg)
    return f"{name} {version}"


def index_of(folder: Path) -> Metadata:
    """Return the index of the tensors."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  half a second that other formats are spared

    try:
        index = sharded_format.read_index(folder)
        for key, tensor in index.state_dict_metadata.items():
            if isinstance(tensor, TensorStorageMetadata):
                pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks]
                require_tiled(folder / sharded_format.INDEX, key, tuple(tensor.size), pieces)
    except FileNotFoundError as error:
        msg = f"{folder} lacks {sharded_format.INDEX}, the index of its tensors.\nCopy it there (note the leading dot)."
        raise CheckpointError(msg) from error
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise damaged(folder / sharded_format.INDEX, f"is damaged: {str(error)[:200]}") from error
    return index


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a sharded checkpoint; None if the folder has another format."""
    content = _content_of(folder)
    if content is None:
        return None
    common, is_ours = content.common, content.is_ours
    stored = sharded_tensors(folder, content.index)
    tensors = dict(chain.from_iterable(_by_layer(key, tensor) for key, tensor in stored.items()))
    args = weight_names.args_of(common)
    samples = weight_names.whole_number(args, "consumed_train_samples")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    rows = shapes.get(EMBEDDING, (0,))[0]
    told = content.settings if is_ours else settings_of(folder, args, shapes, takes_experts=True)
    model = model_weights.model_section(folder, told, given)
    if not (is_ours or groups_agree(model)):
        raise not_ours(folder, GROUPS)
    weights = ModelWeights(
        path=folder,
        format=content.format,
        model=model,
        tensors=tensors,
        vocab_size=common["model"].get("vocab_size") if is_ours else vocab_size_of(args, rows),
        iteration=sharded_format.iteration_told(common),
        consumed_samples=common["progress"]["consumed_samples"] if is_ours else samples,
        fingerprint=common["progress"].get("tokenizer") if is_ours else None,
        schedule=common.get("schedule", {}) if is_ours else schedule_of(common),
        optimizer=None if is_ours else _optimizer_of(common, stored, tensors),
    )
    return model_weights.require_expected(weights)


def _by_layer(key: str, tensor: ShardedTensor) -> Iterator[tuple[str, LazyTensor]]:
    """Yield our name and the tensor of each weight under a key: one, or the same weight of all layers."""
    for name, place in sharded_format.weight_names(key, tensor.shape[0] if tensor.shape else 0):
        yield name, tensor.whole() if place is None else tensor.of_first(place)


def _optimizer_of(
    common: Mapping[str, Any], stored: Mapping[str, ShardedTensor], weights: Iterable[str]
) -> OptimizerState | None:
    """Return the optimizer's state; None if it is not there for all weights, or does not tell its step."""
    tensors: dict[str, LazyTensor] = {}
    for key, tensor in stored.items():
        state, _, rest = key.removeprefix(_PREFIX).partition(".")
        if key.startswith(_PREFIX) and state in _STATES:
            tensors |= {f"{_STATES[state]}.{name}": part for name, part in _by_layer(rest, tensor)}
    steps = {int(step) for step in _steps(common.get("optimizer"), _DEEPEST)}
    trained = [name for name in weights if not name.endswith(EXPERT_BIAS)]
    if len(steps) != 1 or any(f"{moment}.{name}" not in tensors for name in trained for moment in STATES):
        return None
    return OptimizerState(tensors=tensors, step=steps.pop(), loss_scaler=_loss_scaler(common.get("optimizer")))


def _steps(state: Any, depth: int) -> Iterator[Any]:
    """Yield the steps of parameter groups, at any depth: chained optimizers are nested."""
    if isinstance(state, dict) and depth:
        for key, value in state.items():
            if key in {"step", "common_step"}:
                yield value
            else:
                yield from _steps(value, depth - 1)
    elif isinstance(state, list) and depth:
        for value in state:
            yield from _steps(value, depth - 1)


def _loss_scaler(state: Any) -> dict[str, float] | None:
    scaler = state.get("grad_scaler") if isinstance(state, dict) else None
    if not isinstance(scaler, dict) or not all(name in scaler for name in _SCALER):
        return None
    return {"scale": float(scaler["scale"]), **{name: int(scaler[name]) for name in _SCALER[1:]}}


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A piece of a tensor that torch.distributed.checkpoint has written in pieces, to several files."""

    offsets: tuple[int, ...]  # of its first element in the whole tensor
    tensor: LazyTensor


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor in pieces."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[TensorPiece, ...]  # that have every number once

    def whole(self) -> LazyTensor:
        """Return the whole tensor."""
        return LazyTensor(self.shape, self.dtype, lambda begin, end: self._box((begin,), (end,)))

    def of_first(self, number: int) -> LazyTensor:
        """Return the tensor at one place of the first dimension, such as a layer's of a stacked weight."""
        shape = self.shape[1:]
        return LazyTensor(shape, self.dtype, lambda begin, end: self._box((number, begin), (number + 1, end))[0])

    @cached_property
    def _ascending(self) -> tuple[list[TensorPiece], list[int], int]:
        """The pieces by their offsets, the first offset of each, and the most rows that one has."""
        pieces = sorted(self.pieces, key=lambda piece: piece.offsets)
        longest = max((piece.tensor.shape[0] for piece in pieces), default=0)
        return pieces, [piece.offsets[0] for piece in pieces], longest

    def _box(self, begin: tuple[int, ...], end: tuple[int, ...]) -> Tensor:
        """Read [begin, end) of the first dimensions, and all of the others."""
        begin = begin + (0,) * (len(self.shape) - len(begin))
        end = end + self.shape[len(end) :]
        values = torch.empty([high - low for low, high in zip(begin, end, strict=True)], dtype=self.dtype)
        pieces, firsts, longest = self._ascending
        for piece in pieces[bisect_right(firsts, begin[0] - longest) : bisect_left(firsts, end[0])]:
            box = [
                (max(low, first), min(high, first + length))
                for low, high, first, length in zip(begin, end, piece.offsets, piece.tensor.shape, strict=True)
            ]
            if all(low < high for low, high in box):
                _copy(piece, box, begin, values)
        return values


def sharded_tensors(folder: Path, index: Metadata) -> dict[str, ShardedTensor]:
    """Return the tensors that an index lists, by their keys; empty ones are left out."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  as in `index_of`

    places = {(entry.fqn, tuple(entry.offset or ())): info for entry, info in index.storage_data.items()}

    @cache
    def size_of(name: str) -> int | None:
        path = folder / name
        return path.stat().st_size if "/" not in name and path.is_file() else None

    found = {}
    for key, metadata in index.state_dict_metadata.items():
        if isinstance(metadata, TensorStorageMetadata):
            shape, dtype = tuple(metadata.size), metadata.properties.dtype
            chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in metadata.chunks if 0 not in chunk.sizes]
            pieces = []
            for offsets, sizes in chunks:
                info: Any = places.get((key, offsets))
                size = None if info is None else size_of(info.relative_path)
                _require_there(folder, key, info, size, math.prod(sizes) * dtype.itemsize)
                path = folder / info.relative_path
                pieces.append(TensorPiece(offsets, embedded_tensor(path, info.offset, info.length, sizes, dtype)))
            if pieces:
                found[key] = ShardedTensor(shape, dtype, tuple(pieces))
    return found


def _require_there(folder: Path, key: str, info: Any, size: int | None, least: int) -> None:
    """Require a piece of at least so many bytes where the index says, in a file of `size`; None: it is missing."""
    if info is None or size is None:
        where = "its index names no file" if info is None else f"{info.relative_path[:80]} is missing"
        msg = f"{folder} lacks a piece of {key[:120]}: {where}.\nCopy the missing files there."
        raise DamageError(msg)
    if not 0 <= info.offset <= info.offset + info.length <= size:
        raise damaged(folder / info.relative_path, f"is cut off: it ends before a piece of {key[:120]}")
    if least > info.length:
        raise damaged(folder, f"is damaged: a piece of {key[:120]} is larger than its place in its file")


def _copy(piece: TensorPiece, box: list[tuple[int, int]], begin: tuple[int, ...], values: Tensor) -> None:
    (low, high), *others = box
    part = piece.tensor.rows(low - piece.offsets[0], high - piece.offsets[0])
    for dim, (first, last) in enumerate(others, 1):
        part = part.narrow(dim, first - piece.offsets[dim], last - first)
    place = values
    for dim, (first, last) in enumerate(box):
        place = place.narrow(dim, first - begin[dim], last - first)
    place.copy_(part)


def require_tiled(path: Path, key: str, shape: Sequence[int], pieces: Sequence[Box]) -> None:
    """Require that pieces fill a tensor without overlap; the time is linear in their number.

    A number is in the pieces as often as the differences at their corners add up to: +1 at the first corner, with the
    sign changing along each dimension. They therefore have each number once where their corners' sum is the tensor's.
    """
    rank = len(shape)
    whole = (0,) * rank, tuple(shape)
    numbers = [numbers for box in (whole, *pieces) for numbers in box]
    is_like = all(len(each) == rank and all(type(number) is int and number >= 0 for number in each) for each in numbers)
    if rank > _MOST_DIMENSIONS or not is_like:
        problem = "has pieces of other dimensions than its own"
    elif _corners(pieces) != _corners([whole]):
        problem = "has numbers that its pieces leave out or repeat"
    else:
        return
    raise damaged(path, f"is damaged: {key[:120]} {problem}")


def _corners(boxes: Iterable[Box]) -> dict[tuple[int, ...], int]:
    """Return the sum of the signs at every corner where it is not 0; those of an empty box cancel."""
    signs: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        for ends in product((0, 1), repeat=len(sizes)):
            corner = tuple(first + end * size for first, end, size in zip(offsets, ends, sizes, strict=True))
            signs[corner] += -1 if sum(ends) % 2 else 1
    return {corner: sign for corner, sign in signs.items() if sign}
