"""megatron-core's sharded format (torch_dist), as this program and Megatron-LM write it.

Every tensor is stored whole, in pieces; `.metadata` is their index, and common.pt has what all ranks share.

The optimizer is read where every state of a weight is a tensor of its own: without Megatron-LM's distributed optimizer,
and with --dist-ckpt-optim-fully-reshardable (sharded_state_dict of Float16OptimizerWithFloat16Params and
DistributedOptimizer). The distributed optimizer's default, dp_reshardable, keeps flat buckets instead, which only the
same layout can read.
"""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.sharded_format import (
    BACKEND,
    COMMON,
    INDEX,
    OPTIMIZER,
    common_of,
    is_ours,
    is_weight,
    iteration_told,
    read_index,
    weight_names,
)
from pretrain.engine.optimizers.adam import STATES
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.megatron_settings import schedule_of, settings_of, vocab_size_of, whole_number
from pretrain.tools.convert.formats.sharded_tensors import require_tiled, sharded_tensors
from pretrain.tools.convert.model_weights import (
    EMBEDDING,
    MAIN,
    ModelWeights,
    OptimizerState,
    model_section,
    require_expected,
)
from pretrain.tools.convert.summary import CheckpointSummary, FileLayout, contents, dtype_names, extent
from pretrain.tools.convert.weight_names import args_of, count, model_of, number_of_layers, settings_of_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    from pretrain.tools.convert.formats.sharded_tensors import ShardedTensor
    from pretrain.tools.convert.lazy_tensor import LazyTensor


_STACKED = re.compile(r"decoder\.layers\.(?!\d)")
"""Weights of all layers in one tensor, whose first dimension is the layer."""


@dataclass(frozen=True, kw_only=True)  # no slots: the weights are looked up once
class Content:
    """Everything but the tensors of a sharded checkpoint.

    Attributes:
        folder: of the checkpoint.
        kind: of the files, with its version.
        common: what all ranks share.
        index: of the tensors.
    """

    folder: Path
    kind: str
    common: dict[str, Any]
    index: Metadata

    @property
    def is_ours(self) -> bool:
        """`True` for a folder that this program wrote."""
        return is_ours(self.common)

    @property
    def format(self) -> str:
        """The format's name."""
        return "pretrain" if self.is_ours else "Megatron-LM, sharded"

    @property
    def iteration(self) -> int | None:
        """Iteration of the training; None where the files do not tell."""
        return iteration_told(self.common)

    @cached_property
    def weights(self) -> dict[str, TensorStorageMetadata]:
        """Tensors of the index that are weights, by their keys."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  as in `index_of`

        entries = self.index.state_dict_metadata.items()
        return {key: entry for key, entry in entries if is_weight(key) and isinstance(entry, TensorStorageMetadata)}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a recipe's section `model` that the files tell, and `padded_vocab_size`."""
        return _model(self._shapes) | (self.common["model"] if self.is_ours else settings_of_args(args_of(self.common)))

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(entry.size) for key, entry in self.weights.items()}

    def summary(self) -> CheckpointSummary:
        """Return the checkpoint in a few words and numbers."""
        layout = self.common.get("layout", {}) if self.is_ours else args_of(self.common)
        keys = self.index.state_dict_metadata
        files, size = extent(self.folder)
        return CheckpointSummary(
            path=self.folder,
            format=self.format,
            version=f"format {self.common['format']}" if self.is_ours else self.kind,
            iteration=self.iteration,
            model=self.settings,
            parameters=count(self._shapes, 1),
            parts=FileLayout(
                tensor=int(layout.get("tensor_model_parallel_size") or 1),
                pipeline=int(layout.get("pipeline_model_parallel_size") or 1),
                expert=int(layout.get("expert_model_parallel_size") or 1),
            ),
            dtypes=dtype_names(entry.properties.dtype for entry in self.weights.values()),
            contents=contents(
                optimizer=any(key.startswith(OPTIMIZER) for key in keys),
                rng=any(key.startswith("rng") for key in keys),
                schedule=bool(self.common.get("schedule") or self.common.get("opt_param_scheduler")),
            ),
            files=files,
            size=size,
        )


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or a file is missing or could run code.
        DamageError: a file is cut off.
    """
    content = content_of(folder)
    return None if content is None else content.summary()


def content_of(folder: Path) -> Content | None:
    """Read everything but the tensors, or return None if the folder has another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or a file is missing or could run code.
        DamageError: a file is cut off.
    """
    if not (folder / BACKEND).is_file() or not (folder / COMMON).is_file():
        return None
    backend = _backend(folder)
    kind = f"{backend['sharded_backend']} {backend['sharded_backend_version']}"
    return Content(folder=folder, kind=kind, common=common_of(folder), index=index_of(folder))


def _backend(folder: Path) -> dict[str, Any]:
    try:
        backend = json.loads((folder / BACKEND).read_text(encoding="utf-8"))
        name = backend["sharded_backend"]
        backend["sharded_backend_version"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{folder / BACKEND} is damaged: it names no sharded_backend with its version."
        raise DamageError(msg) from error
    if name != "torch_dist":
        msg = (
            f"{folder} is a sharded checkpoint of megatron-core of kind {name}; torch_dist is read.\n"
            "Load it in the Megatron-LM that wrote it, and save it with --ckpt-format torch_dist."
        )
        raise CheckpointError(msg)
    return backend  # type: ignore[no-any-return]


def index_of(folder: Path) -> Metadata:
    """Return the index of the tensors.

    Raises:
        CheckpointError: it is missing.
        DamageError: it is damaged, or the pieces of a tensor have a number twice or not at all.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  half a second that other formats are spared

    try:
        index = read_index(folder)
        for key, tensor in index.state_dict_metadata.items():
            if isinstance(tensor, TensorStorageMetadata):
                pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks]
                require_tiled(folder / INDEX, key, tuple(tensor.size), pieces)
    except FileNotFoundError as error:
        msg = f"{folder} lacks {INDEX}, the index of its tensors.\nCopy it there; its name begins with a dot."
        raise CheckpointError(msg) from error
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        msg = f"{folder / INDEX} is damaged: {str(error)[:200]}\nCopy it again."
        raise DamageError(msg) from error
    return index


def _model(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    stacked = [shape[0] for name, shape in shapes.items() if _STACKED.match(name)]
    return model_of(shapes, max(stacked, default=number_of_layers(shapes)))


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a sharded checkpoint; None if the folder has another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or not complete, or of a model that is not ours.
        DamageError: a file is cut off.
    """
    content = content_of(folder)
    if content is None:
        return None
    common, is_ours = content.common, content.is_ours
    stored = sharded_tensors(folder, content.index)
    tensors = _weights(stored)
    args = args_of(common)
    progress = common["progress"] if is_ours else {"consumed_samples": whole_number(args, "consumed_train_samples")}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    rows = shapes.get(EMBEDDING, (0,))[0]
    told = content.settings if is_ours else settings_of(folder, args, shapes)
    return require_expected(
        ModelWeights(
            path=folder,
            format=content.format,
            model=model_section(folder, told, given),
            tensors=tensors,
            vocab_size=common["model"].get("vocab_size") if is_ours else vocab_size_of(args, rows),
            iteration=content.iteration,
            consumed_samples=progress["consumed_samples"],
            schedule=common.get("schedule", {}) if is_ours else schedule_of(common),
            optimizer=None if is_ours else optimizer_of(common, stored, tensors),
        )
    )


def _weights(stored: Mapping[str, ShardedTensor]) -> dict[str, LazyTensor]:
    """Return the weights among the tensors of a checkpoint, under our names."""
    return {
        name: tensor.whole() if place is None else tensor.of_first(place)
        for key, tensor in stored.items()
        for name, place in weight_names(key, tensor.shape[0] if tensor.shape else 0)
    }


_PREFIX = "optimizer.state."
_STATES = {state: state for state in (*STATES, MAIN)} | {"param": MAIN}
"""State in a key -> ours; the distributed optimizer has a name of its own for main weights."""

_SCALER = ("scale", "growth_tracker", "hysteresis_tracker")
_DEEPEST = 8


def optimizer_of(
    common: Mapping[str, Any], stored: Mapping[str, ShardedTensor], weights: Iterable[str]
) -> OptimizerState | None:
    """Return the optimizer's state; None if it is not there for all weights, or does not tell its step.

    Args:
        common: what all ranks share.
        stored: all tensors by their keys.
        weights: our names of the model's weights.
    """
    tensors = {}
    for key, tensor in stored.items():
        state, _, rest = key.removeprefix(_PREFIX).partition(".")
        if key.startswith(_PREFIX) and state in _STATES:
            for name, place in weight_names(rest, tensor.shape[0]):
                tensors[f"{_STATES[state]}.{name}"] = tensor.whole() if place is None else tensor.of_first(place)
    steps = {int(step) for step in _steps(common.get("optimizer"), _DEEPEST)}
    if len(steps) != 1 or any(f"{moment}.{name}" not in tensors for name in weights for moment in STATES):
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
