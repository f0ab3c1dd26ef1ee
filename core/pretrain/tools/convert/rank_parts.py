"""Parts of weights on tensor-parallel ranks: collected from their files, merged and divided.

ColumnParallelLinear and VocabParallelEmbedding divide the rows, RowParallelLinear the columns and not the bias
(megatron/core/tensor_parallel/layers.py). A rank of swiglu's linear_fc1 holds [its gate rows; its up rows].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import LazyTensor, averaged, joined, part_of
from pretrain.tools.convert.weight_names import bounded, divided_dimension, flat_tensors, some_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection


def merged(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    """Return a whole weight; what every rank has whole is averaged where the ranks differ.

    Args:
        name: ours.
        parts: one for each rank, in their order.
        model: whose weight it is.

    Raises:
        CheckpointError: the parts do not belong together.
    """
    dimension = divided_dimension(name)
    if dimension is None:
        return averaged(parts)
    if is_gated(name, model):
        return joined([part_of(part, 0, half, 2) for half in range(2) for part in parts], 0)
    return joined(parts, dimension)


def part_of_rank(name: str, whole: LazyTensor, rank: int, ranks: int, model: ModelSection) -> LazyTensor:
    """Return one rank's part of a weight.

    Raises:
        CheckpointError: the weight cannot be divided among so many ranks.
    """
    dimension = divided_dimension(name)
    if dimension is None or ranks == 1:
        return whole
    if is_gated(name, model):
        return joined([part_of(part_of(whole, 0, half, 2), 0, rank, ranks) for half in range(2)], 0)
    return part_of(whole, dimension, rank, ranks)


def gate_last(part: LazyTensor) -> LazyTensor:
    """Return one rank's part of a gated weight with its halves exchanged: GPT-NeoX's have [up rows; gate rows]."""
    return joined([part_of(part, 0, half, 2) for half in (1, 0)], 0)


def is_gated(name: str, model: ModelSection) -> bool:
    """Say whether the weight consists of a gate's and an up projection's rows."""
    return model.activation == "swiglu" and ".mlp.linear_fc1." in name


_SAME = ("iteration", "global_steps", "checkpoint_version")
"""What all files of one checkpoint tell alike."""


def weights_in(path: Path, state: Any) -> dict[str, LazyTensor]:
    """Return the weights of a state dict by their names.

    Raises:
        CheckpointError: one is a single number, or not of floating point.
    """
    tensors = flat_tensors(state)
    weights = {name: tensor for name, tensor in tensors.items() if _is_weight(tensor)}
    if odd := next((name for name in tensors if name not in weights), None):
        msg = f"{path} holds {odd[:100]}, which is not a GPT weight.\nOnly floating-point tensors are read."
        raise CheckpointError(msg)
    return weights


def _is_weight(tensor: object) -> TypeGuard[LazyTensor]:
    return isinstance(tensor, LazyTensor) and tensor.dtype.is_floating_point


def by_name(ranks: Sequence[tuple[Path, dict[str, LazyTensor]]]) -> dict[str, list[LazyTensor]]:
    """Return each weight's parts in the order of the ranks.

    Args:
        ranks: file and weights of each tensor-parallel rank.

    Raises:
        CheckpointError: the ranks have different weights, or parts of different shapes or dtypes.
    """
    first, weights = ranks[0]
    for path, others in ranks[1:]:
        if missing := sorted(weights.keys() ^ others.keys()):
            lacking = path if missing[0] in weights else first
            msg = (
                f"{lacking} lacks {missing[0]}, which another tensor-parallel rank's file has.\n"
                "Copy the files of one checkpoint together."
            )
            raise CheckpointError(msg)
        for name, part in others.items():
            if (part.shape, part.dtype) != (weights[name].shape, weights[name].dtype):
                msg = (
                    f"{path} has {name} as {_shown(part)}, and {first} as {_shown(weights[name])}.\n"
                    "Copy the files of one checkpoint together."
                )
                raise CheckpointError(msg)
    return {name: [others[name] for _, others in ranks] for name in weights}


def require_one_save(states: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """Require that ranks and stages were saved at one iteration and in one version.

    Args:
        states: file and what it holds, of every rank.

    Raises:
        CheckpointError: two differ.
    """
    first, expected = states[0]
    for path, state in states[1:]:
        for key in _SAME:
            found, wanted = bounded(state.get(key)), bounded(expected.get(key))
            if found != wanted:
                msg = f"{path} has {key} {found}, and {first} {wanted}.\nCopy the files of one checkpoint together."
                raise CheckpointError(msg)


def not_known(path: Path, names: Sequence[str]) -> CheckpointError:
    """Return the error for weights whose place in our model is not known."""
    shown = some_of([name[:100] for name in names])
    return CheckpointError(
        f"{path} holds {len(names)} weights that are not of a GPT: {shown}.\n"
        "Only models that a recipe can describe are converted."
    )


def _shown(part: LazyTensor) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
