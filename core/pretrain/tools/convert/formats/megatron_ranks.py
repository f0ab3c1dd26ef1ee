"""Megatron-LM's format of before megatron-core's sharded one: a file for each tensor- and pipeline-parallel rank.

`mp_rank_TT/model_optim_rng.pt`; with several stages `mp_rank_TT_PPP/`; expert parallelism adds a number at the end
(get_checkpoint_name in megatron/training/checkpointing.py). The folder around them is `release/` or `iter_0000000/`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.dtypes import dtype_names
from pretrain.tools.convert.formats.location import RELEASE, extent
from pretrain.tools.convert.formats.megatron_weights import (
    args_of,
    bounded,
    count,
    flat_weights,
    model_of,
    number_of_layers,
    require_sizes,
    settings_of_args,
    whole_shape,
)
from pretrain.tools.convert.formats.summary import Parts, Summary, contents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.convert.formats.megatron_weights import Shapes

FILE = "model_optim_rng.pt"
_CHUNK = re.compile(r"model\d*")
"""Keys of the model chunks; with a virtual pipeline they have numbers."""

_COPY = re.compile(r"word_embeddings_for_head|word_embeddings\.weight$")
"""The tied embedding's copy on a later stage."""

_OUTPUT = "output_layer.weight"
"""megatron-core's output layer, which is such a copy too unless the arguments say that it is untied."""

_MOST_RANKS = 100_000
_SCHEDULES = ("opt_param_scheduler", "lr_scheduler")
_GENERATORS = ("rng_state", "random_rng_state", "torch_rng_state")


@dataclass(frozen=True, slots=True)
class Rank:
    """One file and its place in the layout."""

    tensor: int
    stage: int
    expert: int
    file: Path


def describe(folder: Path) -> Summary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a rank's file is missing, or one holds objects that could run code.
        DamageError: a file is cut off, or lacks the model.
    """
    names = rank_folders(folder)
    if not names:
        return None
    first = _state(folder / names[0] / FILE)
    args = args_of(first)
    ranks = all_ranks(folder, names, args)
    parts = Parts(
        tensor=max(rank.tensor for rank in ranks) + 1,
        pipeline=max(rank.stage for rank in ranks) + 1,
        virtual_pipeline=len(chunks_of(first)),
        expert=max(rank.expert for rank in ranks) + 1,
    )
    is_tied = args.get("untie_embeddings_and_output_weights") is False
    shapes, layers = _weights(ranks, first, parts.tensor, is_tied=is_tied)
    sizes = {"tensor_model_parallel_size": parts.tensor, "pipeline_model_parallel_size": parts.pipeline}
    require_sizes(folder, args, sizes | {"num_layers": layers})
    iteration = first.get("iteration")
    files, size = extent(folder)
    return Summary(
        path=folder,
        format="Megatron-LM, one file a rank",
        version=bounded(first.get("checkpoint_version", 0)),
        iteration=None if folder.name == RELEASE or not isinstance(iteration, int) else iteration,
        model=model_of(shapes, layers) | settings_of_args(args),
        parameters=count(shapes, parts.tensor),
        parts=parts,
        dtypes=dtype_names(tensor.dtype for chunk in chunks_of(first) for tensor in flat_weights(chunk).values()),
        contents=contents(
            optimizer=first.get("optimizer") is not None or any(folder.glob("mp_rank_*/distrib_optim.pt")),
            rng=any(key in first for key in _GENERATORS),
            schedule=any(first.get(key) for key in _SCHEDULES),
        ),
        files=files,
        size=size,
    )


def rank_folders(folder: Path) -> list[str]:
    """Return the names of the ranks' folders, sorted; none if the checkpoint is of another format."""
    return sorted(entry.name for entry in folder.glob("mp_rank_*") if (entry / FILE).is_file())


def rank_with_model(path: Path, state: Any) -> dict[str, Any]:
    """Return what a rank's file holds, which has a model.

    Raises:
        DamageError: it has none.
    """
    if not isinstance(state, dict) or not chunks_of(state):
        msg = f"{path} holds no model (a key `model`)."
        raise DamageError(msg)
    return state


def _state(path: Path) -> dict[str, Any]:
    return rank_with_model(path, torch_file_tensors(path))


def chunks_of(state: Mapping[str, Any]) -> list[Any]:
    """Return a rank's chunks of the model in their order: one, or with a virtual pipeline several."""
    keys = [str(key) for key in state if _CHUNK.fullmatch(str(key))]
    return [state[key] for key in sorted(keys, key=lambda key: int(key.removeprefix("model") or 0))]


def all_ranks(folder: Path, names: list[str], args: Mapping[str, Any]) -> list[Rank]:
    """Return all ranks.

    Args:
        folder: of the checkpoint.
        names: of the ranks' folders.
        args: arguments of the training, which say whether a number is of an expert-parallel rank.

    Raises:
        CheckpointError: some are missing.
    """
    experts = args.get("expert_model_parallel_size")
    has_experts = isinstance(experts, int) and experts > 1
    written = [re.findall(r"\d+", name) for name in names]
    if (
        len({len(numbers) for numbers in written}) > 1
        or math.prod(max(map(int, axis)) + 1 for axis in zip(*written, strict=True)) > _MOST_RANKS
    ):
        msg = f"{folder} has folders {names[0]} and {names[-1]}, which are not of one layout.\nRemove those of another."
        raise CheckpointError(msg)
    sizes = [max(map(int, axis)) + 1 for axis in zip(*written, strict=True)]
    axes = [[f"{number:0{len(one)}d}" for number in range(size)] for size, one in zip(sizes, written[0], strict=True)]
    expected = ["mp_rank_" + "_".join(each) for each in product(*axes)]
    if missing := [name for name in expected if name not in names]:
        shown = ", ".join(missing[:4]) + (" ..." if len(missing) > 4 else "")
        msg = f"{folder} lacks {len(missing)} of its {len(expected)} ranks: {shown}.\nCopy them there."
        raise CheckpointError(msg)
    ranks = []
    for name in names:
        tensor, *rest = map(int, re.findall(r"\d+", name))
        expert = rest.pop() if has_experts and rest else 0
        ranks.append(Rank(tensor, rest[0] if rest else 0, expert, folder / name / FILE))
    return ranks


def _weights(ranks: list[Rank], first: dict[str, Any], tensor: int, *, is_tied: bool) -> tuple[Shapes, int]:
    """Return the whole shapes of all weights, named by stage, chunk and name, and the number of layers.

    Args:
        ranks: all of them.
        first: the first one's file, which has been read.
        tensor: number of tensor-parallel ranks.
        is_tied: whether an output layer on a later stage is the embedding once more.
    """
    shapes: Shapes = {}
    layers: dict[tuple[int, int], int] = {}
    for rank in ranks:
        if rank.tensor > 0:
            continue
        for number, chunk in enumerate(chunks_of(first if rank is ranks[0] else _state(rank.file))):
            weights = flat_weights(chunk)
            if rank.stage > 0:
                weights = {name: weight for name, weight in weights.items() if not is_copy(name, is_tied=is_tied)}
            layers[rank.stage, number] = number_of_layers(weights)
            shapes |= {
                f"{rank.stage}/{number}/{rank.expert if '.experts.' in name else 0}/{name}": _whole(
                    name, weight, tensor
                )
                for name, weight in weights.items()
            }
    return shapes, sum(layers.values())


def is_copy(name: str, *, is_tied: bool) -> bool:
    """Say whether a weight of a later stage is the embedding once more."""
    return _COPY.search(name) is not None or (is_tied and name.endswith(_OUTPUT))


def _whole(name: str, weight: Tensor, tensor: int) -> tuple[int, ...]:
    return whole_shape(name, tuple(weight.shape), tensor)
