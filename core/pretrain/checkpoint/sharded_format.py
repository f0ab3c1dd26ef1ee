"""Files and names of a sharded checkpoint: common.pt, torch's index, and the weights' names.

megatron-core stacks the weights of all layers under one key, with the layer as the first dimension, unless some layers
have experts and others one MLP; norms have the names of Transformer Engine's layers that contain them
(TransformerLayer.sharded_state_dict), but for the norm before experts. Weights of experts are [experts, out, in].
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import checksums, torch_file
from pretrain.checkpoint.folder import WITHOUT_CHECKSUMS, iteration_of
from pretrain.errors import DamageError, MisnamedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

COMMON, BACKEND = "common.pt", "metadata.json"
# beginning of the keys of an optimizer's state, and the name among them of main weights
PREFIX, MAIN = "optimizer.state", "fp32_param"
OPTIMIZER = ("optimizer", "chained")
_OTHERS = (*OPTIMIZER, "rng", "rerun")  # beginnings of keys that are not of weights


def common_of(folder: Path) -> dict[str, Any]:
    """Return what all ranks share; DamageError, CheckpointError, or MisnamedError for another folder's iteration."""
    # Not by megatron-core's reader, which runs code where TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set.
    common = torch_file.read(folder / COMMON)
    if not isinstance(common, dict):
        msg = f"{folder / COMMON} is damaged: it does not map names to values."
        raise DamageError(msg)
    if is_ours(common) and common["format"] != WITHOUT_CHECKSUMS and not checksums.are_there(folder):
        foreign = checksums.are_foreign(folder)
        what, copy = ("another program's", "the checkpoint's own there") if foreign else ("missing", "it there again")
        msg = f"{folder / checksums.FILE} is {what}.\nCopy {copy}, or take another checkpoint."
        raise DamageError(msg)
    told, named = iteration_told(common), iteration_of(folder.name)
    if None not in (told, named) and told != named:
        msg = f"{folder} holds iteration {told}, but its name says {named}.\nRename it after the iteration in it."
        raise MisnamedError(msg)
    return common


def is_ours(common: dict[str, Any]) -> bool:
    """Say whether this program wrote a checkpoint."""
    return "format" in common and isinstance(common.get("progress"), dict)


def iteration_told(common: dict[str, Any]) -> int | None:
    """Return the iteration that a checkpoint tells; None without one."""
    found: int | None = (common["progress"] if is_ours(common) else common).get("iteration")
    return found


def is_weight(key: str) -> bool:
    """Say whether a key of the index is of a weight."""
    return not key.startswith(_OTHERS) and "_extra_state" not in key


INDEX = ".metadata"
_DATA_MODULES = tuple(f"torch.distributed.checkpoint.{name}" for name in ("filesystem", "metadata", "planner"))
_RECORDS = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}
_BY_NAME = ("builtins", "getattr")


def read_index(directory: Path) -> Metadata:
    """Return the index, which torch reads with plain pickle; pickle.UnpicklingError: it holds more than data."""
    from torch.distributed.checkpoint.metadata import Metadata  # noqa: PLC0415  half a second that other formats are spared

    if (directory / INDEX).exists() and not (directory / INDEX).is_file():  # a pipe would be waited for
        msg = f"{INDEX} is not a file"
        raise pickle.UnpicklingError(msg)
    with (directory / INDEX).open("rb") as file:
        found = _Unpickler(file).load()
    if not isinstance(found, Metadata):
        msg = f"{INDEX} is not an index"
        raise pickle.UnpicklingError(msg)
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return dtypes and torch's own records; a dotted name would reach what a module imports."""
        if (module, name) == _BY_NAME:
            return _member
        if "." not in name and (module in _DATA_MODULES or module == "torch" or (module, name) in _RECORDS):
            found = super().find_class(module, name)
            is_data = dataclasses.is_dataclass(found) or (isinstance(found, type) and issubclass(found, Enum))
            is_record = is_data and found.__module__ == module
            if (module, name) in _RECORDS or isinstance(found, torch.dtype) or is_record:
                return found
        msg = f"{INDEX} holds {module}.{name}, which is not part of an index"
        raise pickle.UnpicklingError(msg)


def _member(kind: Any, name: str) -> Enum:
    """Return a member of an enumeration, for which Python 3.11.0 to 3.11.3 writes getattr."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        msg = f"{INDEX} holds {'.'.join(_BY_NAME)} of what is no enumeration"
        raise pickle.UnpicklingError(msg)
    return kind[name]


_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_STACKED = "decoder.layers."
_OF_MLP = "pre_mlp_layernorm."
EXPERTS = "mlp.experts.experts."  # in the key of experts' weights and of their state
_THEIRS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    _OF_MLP: "mlp.linear_fc1.layer_norm_",
    "mlp.experts.": EXPERTS,
}


def sharded_name(name: str, has_experts: Sequence[bool]) -> tuple[str, int | None]:
    """Return the key of a weight of ours, and its layer; None for one outside of the layers.

    The layer is its place in the key's first dimension, or where only some layers have experts a part of the key.
    """
    found = _LAYER.fullmatch(name)
    if found is None:
        return name, None
    rest, layer = found[2], int(found[1])
    for ours, theirs in _THEIRS.items():
        if rest.startswith(ours) and not (ours == _OF_MLP and has_experts[layer]):
            rest = theirs + rest.removeprefix(ours)
    return (_STACKED if is_stacked(has_experts) else f"{_STACKED}{layer}.") + rest, layer


def is_stacked(has_experts: Sequence[bool]) -> bool:
    """Say whether the weights of all layers have one key, for a model whose layers have experts or one MLP."""
    return all(has_experts) or not any(has_experts)


def weight_names(key: str, layers: int) -> list[tuple[str, int | None]]:
    """Return our names of the weights under a key, each with its place in the first dimension of so many layers."""
    if not is_weight(key):
        return []
    numbered = _LAYER.fullmatch(key)
    if numbered is not None:
        return [(f"{_STACKED}{numbered[1]}.{_ours(numbered[2])}", None)]
    if key.startswith(_STACKED):
        rest = _ours(key.removeprefix(_STACKED))
        return [(f"{_STACKED}{number}.{rest}", number) for number in range(layers)]
    return [(key, None)]


def _ours(rest: str) -> str:
    for ours, theirs in _THEIRS.items():
        if rest.startswith(theirs):
            return ours + rest.removeprefix(theirs)
    return rest
