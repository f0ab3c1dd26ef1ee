"""Read Megatron-LM's files of before megatron-core's sharded format: one for each tensor- and pipeline-parallel rank.

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
from pretrain.tools.convert.formats.megatron_settings import (
    not_ours,
    qkv_order,
    schedule_of,
    settings_of,
    vocab_size_of,
    whole_number,
)
from pretrain.tools.convert.lazy_tensor import equal_to
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT, ModelWeights, model_section, require_expected
from pretrain.tools.convert.rank_parts import by_name, merged, not_known, require_one_save, weights_in
from pretrain.tools.convert.stored import torch_file_tensors
from pretrain.tools.convert.summary import RELEASE, CheckpointSummary, FileLayout, contents, dtype_names, extent
from pretrain.tools.convert.weight_names import (
    args_of,
    bounded,
    count,
    flat_weights,
    has_old_order,
    model_of,
    number_of_layers,
    our_name,
    require_sizes,
    settings_of_args,
    some_of,
    whole_shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weight_names import Shapes


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
class RankFile:
    """One file and its place in the layout."""

    tensor: int
    stage: int
    expert: int
    file: Path


def describe(folder: Path) -> CheckpointSummary | None:
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
    parts = FileLayout(
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
    return CheckpointSummary(
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


def _state(path: Path) -> dict[str, Any]:
    """Return what a rank's file holds, which has a model.

    Raises:
        DamageError: it has none.
    """
    state = torch_file_tensors(path)
    if not isinstance(state, dict) or not chunks_of(state):
        msg = f"{path} has no key `model`.\nCopy it again."
        raise DamageError(msg)
    return state


def chunks_of(state: Mapping[str, Any]) -> list[Any]:
    """Return a rank's chunks of the model in their order: one, or with a virtual pipeline several."""
    keys = [str(key) for key in state if _CHUNK.fullmatch(str(key))]
    return [state[key] for key in sorted(keys, key=lambda key: int(key.removeprefix("model") or 0))]


def all_ranks(folder: Path, names: list[str], args: Mapping[str, Any]) -> list[RankFile]:
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
        msg = f"{folder} has folders {names[0]} and {names[-1]}, which are of different layouts.\nRemove those of one."
        raise CheckpointError(msg)
    sizes = [max(map(int, axis)) + 1 for axis in zip(*written, strict=True)]
    axes = [[f"{number:0{len(one)}d}" for number in range(size)] for size, one in zip(sizes, written[0], strict=True)]
    expected = ["mp_rank_" + "_".join(each) for each in product(*axes)]
    if missing := [name for name in expected if name not in names]:
        msg = f"{folder} lacks {len(missing)} of its {len(expected)} ranks: {some_of(missing)}.\nCopy them there."
        raise CheckpointError(msg)
    ranks = []
    for name in names:
        tensor, *rest = map(int, re.findall(r"\d+", name))
        expert = rest.pop() if has_experts and rest else 0
        ranks.append(RankFile(tensor, rest[0] if rest else 0, expert, folder / name / FILE))
    return ranks


def _weights(ranks: list[RankFile], first: dict[str, Any], tensor: int, *, is_tied: bool) -> tuple[Shapes, int]:
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
                f"{rank.stage}/{number}/{rank.expert if '.experts.' in name else 0}/{name}": whole_shape(
                    name, weight.shape, tensor
                )
                for name, weight in weights.items()
            }
    return shapes, sum(layers.values())


def is_copy(name: str, *, is_tied: bool) -> bool:
    """Say whether a weight of a later stage is the embedding once more."""
    return _COPY.search(name) is not None or (is_tied and name.endswith(_OUTPUT))


_Parts = dict[str, list["LazyTensor"]]
"""Name of a weight -> its part on each tensor-parallel rank."""


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of Megatron-LM, or None if the folder is of another format.

    Args:
        folder: `release/` or `iter_0000000/`.
        given: settings of the section `model` that the files do not tell; they win. Releases of 2019 do not tell
            num_attention_heads.

    Raises:
        CheckpointError: ranks or layers are missing, parts do not belong together, or the model is not one of ours.
        DamageError: a file is damaged.
    """
    names = rank_folders(folder)
    if not names:
        return None
    args = args_of(_state(folder / names[0] / FILE))
    ranks = all_ranks(folder, names, args)
    tensor, stages = max(rank.tensor for rank in ranks) + 1, max(rank.stage for rank in ranks) + 1
    if any(rank.expert for rank in ranks):
        raise not_ours(folder, "a mixture of experts (num_experts)")
    states = {(rank.stage, rank.tensor): _state(rank.file) for rank in ranks}
    first = states[0, 0]
    require_one_save([(rank.file, states[rank.stage, rank.tensor]) for rank in ranks])
    is_untied = {**args, **given}.get("untie_embeddings_and_output_weights")
    parts, old_order = _parts(folder, _chunks_of_stages(ranks, states, tensor, stages), is_untied=is_untied)
    shapes = {name: whole_shape(name, each[0].shape, tensor) for name, each in parts.items()}
    sizes = {
        "model_parallel_size": tensor,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": stages,
    }
    require_sizes(folder, args, sizes | {"num_layers": number_of_layers(shapes)})
    model = model_section(folder, settings_of(folder, args, shapes), given)
    ordered = qkv_order(folder, first.get("checkpoint_version", 0), args, model, tensor) if old_order else None
    tensors = {
        name: merged(name, [ordered(part) for part in each] if ordered and name in old_order else each, model)
        for name, each in parts.items()
    }
    rows = parts[EMBEDDING][0].shape[0] * tensor if EMBEDDING in parts else 0
    weights = ModelWeights(
        path=folder,
        format="Megatron-LM, one file a rank",
        model=model,
        tensors=tensors,
        vocab_size=vocab_size_of(args, rows),
        iteration=None if folder.name == RELEASE else whole_number(first, "iteration"),
        consumed_samples=whole_number(args, "consumed_train_samples"),
        schedule=schedule_of(first),
    )
    return require_expected(weights)


def _chunks_of_stages(
    ranks: list[RankFile], states: Mapping[tuple[int, int], dict[str, Any]], tensor: int, stages: int
) -> list[list[list[tuple[Path, Any]]]]:
    """Return file and state by virtual stage, stage and tensor-parallel rank, in the order of the model's layers.

    Chunk v of stage p comes after the chunks v of the stages before it, and after all stages' chunks before v
    (get_transformer_layer_offset in megatron/core/transformer/transformer_layer.py).

    Raises:
        CheckpointError: the stages have different numbers of chunks.
    """
    files = {(rank.stage, rank.tensor): rank.file for rank in ranks}
    chunks = {place: chunks_of(state) for place, state in states.items()}
    count = len(chunks[0, 0])
    for place, found in chunks.items():
        if len(found) != count:
            msg = f"{files[place]} has {len(found)} chunks of the model, and {files[0, 0]} has {count}."
            raise CheckpointError(msg + "\nCopy the files of one checkpoint together.")
    return [
        [[(files[stage, rank], chunks[stage, rank][chunk]) for rank in range(tensor)] for stage in range(stages)]
        for chunk in range(count)
    ]


def _parts(folder: Path, chunks: list[list[list[tuple[Path, Any]]]], *, is_untied: object) -> tuple[_Parts, set[str]]:
    """Return all parts by our names, and which of them have an order of rows that depends on the version.

    Args:
        folder: of the checkpoint, for errors.
        chunks: file and state by virtual stage, stage and rank.
        is_untied: untie_embeddings_and_output_weights; None where it is not known.

    Raises:
        CheckpointError: a weight is not known, a layer of a stage is missing, or the embedding's copy differs.
    """
    parts: _Parts = {}
    old_order: set[str] = set()
    copies: set[str] = set()
    layers = 0
    for number, stages in enumerate(chunks):
        for stage, ranks in enumerate(stages):
            found = by_name([(path, weights_in(path, state)) for path, state in ranks])
            if (number, stage) != (0, 0):
                copies |= {name for name in found if is_copy(name, is_tied=is_untied is False)}
            ours = {name: OUTPUT if name in copies else our_name(name, layers) for name in found}
            if unknown := [name for name, our in ours.items() if our is None]:
                raise not_known(ranks[0][0], unknown)
            for name, our in ours.items():
                if our is None or our in parts:
                    msg = f"{folder} has {our} twice: {ranks[0][0]} holds it once more as {name[:100]}."
                    raise CheckpointError(msg + "\nCopy the files of one checkpoint together.")
                parts[our] = found[name]
                if has_old_order(name):
                    old_order.add(our)
            layers += _layers_of(ranks[0][0], layers, [our for our in ours.values() if our is not None])
    if copies and EMBEDDING in parts and is_untied is not True:
        names = (EMBEDDING, min(copies))
        output = parts.pop(OUTPUT)
        pairs = zip(parts[EMBEDDING], output, strict=True)
        parts[EMBEDDING] = [equal_to(part, copy, folder, names) for part, copy in pairs]
    return parts, old_order


def _layers_of(path: Path, before: int, names: list[str]) -> int:
    """Return the number of layers of one chunk.

    Raises:
        CheckpointError: one between them is missing.
    """
    numbers = {int(name.split(".")[2]) - before for name in names if name.startswith("decoder.layers.")}
    if numbers and max(numbers) + 1 != len(numbers):
        missing = next(number for number in range(len(numbers)) if number not in numbers)
        msg = f"{path} lacks the weights of its layer {missing}.\nCopy the file again."
        raise CheckpointError(msg)
    return len(numbers)
