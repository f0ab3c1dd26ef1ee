"""Weights of universal checkpoints: `zero/NAME/fp32.pt`, whole, as deepspeed/checkpoint/ds_to_universal.py writes them.

A file holds {param, cat_dim, vocab_tensor, param_n_sub_params, ...} (`merge_tp_slices`), or the tensor alone and flat
(`merge_zero3_slices`); then `param_shapes` in the model's files have its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.zero_shards import UNIVERSAL, listed
from pretrain.tools.convert.weights.flat import unflattened
from pretrain.tools.convert.weights.lazy_tensor import LazyTensor
from pretrain.tools.convert.weights.stored import torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.tools.convert.formats.megatron_weights import Shapes

FILE = "fp32.pt"
PARAM, CAT_DIM, VOCABULARY, SUB_PARAMS = "param", "cat_dim", "vocab_tensor", "param_n_sub_params"
"""Keys of a file, by deepspeed/checkpoint/constants.py."""

_REFUSED = {"is_expert_param": "a mixture of experts", "sub_param_shape": "parameters of several sub-parameters"}


@dataclass(frozen=True, slots=True)
class UniversalWeight:
    """A weight.

    Attributes:
        tensor: whole; of the vocabulary without padding where the converter knew its size.
        in_order: whether the parts of a fused weight (gate and up projection; query, key and value) follow one another,
            as a converter has them that knows of them. Otherwise the tensor-parallel ranks' rows do.
    """

    tensor: LazyTensor
    in_order: bool


def universal_weights(folder: Path, states: Sequence[Mapping[str, Any]]) -> dict[str, UniversalWeight]:
    """Return the weights by name.

    Args:
        folder: the checkpoint.
        states: what the files of the model hold.

    Raises:
        CheckpointError: a weight is missing, or of a kind that is not read.
        DamageError: a file is cut off, or holds no tensor.
    """
    shapes: Shapes = {}
    for state in states:
        shapes |= listed(state.get("param_shapes"))
    copies = {str(name) for state in states for name in state.get("shared_params") or ()}
    files = {file.parent.name: file for file in sorted((folder / UNIVERSAL).glob(f"*/{FILE}"))}
    if missing := sorted(set(shapes) - set(files) - copies):
        count = f"{len(missing)} weight{'s' * (len(missing) > 1)}"
        msg = f"{folder / UNIVERSAL} lacks {count}: {', '.join(missing[:3])}.\nCopy their folders there."
        raise CheckpointError(msg)
    if not files:
        msg = f"{folder / UNIVERSAL} has no folder with a file {FILE}.\nCopy the weights' folders there."
        raise CheckpointError(msg)
    return {name: _weight(file, shapes.get(name)) for name, file in files.items() if name not in copies}


def _weight(file: Path, shape: tuple[int, ...] | None) -> UniversalWeight:
    content = torch_file_tensors(file)
    keys: Mapping[str, Any] = content if isinstance(content, dict) else {PARAM: content}
    tensor = keys.get(PARAM)
    if not isinstance(tensor, LazyTensor):
        msg = f"{file} holds no tensor (a key `{PARAM}`, or one alone).\nCopy it again."
        raise DamageError(msg)
    for key, what in _REFUSED.items():
        if keys.get(key):
            msg = f"{file} is of a model with {what} ({key}).\nNo model of this program has any."
            raise CheckpointError(msg)
    if len(tensor.shape) == 1 and shape is not None and math.prod(shape) == tensor.shape[0]:
        tensor = unflattened(tensor, 0, shape)
    return UniversalWeight(tensor, in_order=keys.get(SUB_PARAMS) in (2, 3))
