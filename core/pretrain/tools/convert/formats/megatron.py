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

from pretrain.errors import CheckpointError
from pretrain.report.plain_text import some_of
from pretrain.tools.convert import model_weights, rank_parts, weight_names
from pretrain.tools.convert.formats.megatron_settings import (
    is_mixture,
    qkv_order,
    schedule_of,
    settings_of,
    vocab_size_of,
)
from pretrain.tools.convert.lazy_tensor import equal_to
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT, RELEASE, CheckpointSummary, FileLayout, ModelWeights
from pretrain.tools.convert.rank_parts import lacking, merged, mixed_files
from pretrain.tools.convert.stored import damaged, torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weight_names import Shapes

FILE = "model_optim_rng.pt"
_CHUNK = re.compile(r"model\d*")  # keys of the model chunks; with a virtual pipeline they have numbers
_COPY = re.compile(r"word_embeddings_for_head|word_embeddings\.weight$")  # the tied embedding's copy on a later stage
_MOST_RANKS = 100_000
_SCHEDULES = ("opt_param_scheduler", "lr_scheduler")
_GENERATORS = ("rng_state", "random_rng_state", "torch_rng_state")
_Parts = dict[str, list["LazyTensor"]]  # name of a weight -> its part on each tensor-parallel rank


@dataclass(frozen=True, slots=True)
class _RankFile:
    tensor: int
    stage: int
    expert: int
    file: Path


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format."""
    names = _rank_folders(folder)
    if not names:
        return None
    first = _state(folder / names[0] / FILE)
    args = weight_names.args_of(first)
    ranks = _all_ranks(folder, names, args)
    parts = FileLayout(
        tensor=max(rank.tensor for rank in ranks) + 1,
        pipeline=max(rank.stage for rank in ranks) + 1,
        virtual_pipeline=len(_chunks_of(first)),
        expert=max(rank.expert for rank in ranks) + 1,
    )
    is_tied = args.get("untie_embeddings_and_output_weights") is False
    shapes, layers = _weights(ranks, first, parts.tensor, is_tied=is_tied)
    sizes = {"tensor_model_parallel_size": parts.tensor, "pipeline_model_parallel_size": parts.pipeline}
    weight_names.require_sizes(folder, args, sizes | {"num_layers": layers})
    iteration = first.get("iteration")
    tensors = [tensor for chunk in _chunks_of(first) for tensor in weight_names.flat_weights(chunk).values()]
    return CheckpointSummary(
        path=folder,
        format="Megatron-LM, one file a rank",
        version=weight_names.bounded(first.get("checkpoint_version", 0)),
        iteration=None if folder.name == RELEASE or not isinstance(iteration, int) else iteration,
        model=weight_names.model_of(shapes, layers) | weight_names.settings_of_args(args),
        parameters=weight_names.count(shapes, parts.tensor),
        parts=parts,
        dtypes=model_weights.dtype_names(tensor.dtype for tensor in tensors),
        contents=model_weights.contents(
            optimizer=first.get("optimizer") is not None or any(folder.glob("mp_rank_*/distrib_optim.pt")),
            rng=any(key in first for key in _GENERATORS),
            schedule=any(first.get(key) for key in _SCHEDULES),
        ),
    )


def _rank_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.glob("mp_rank_*") if (entry / FILE).is_file())


def _state(path: Path) -> dict[str, Any]:
    state = torch_file_tensors(path)
    if not isinstance(state, dict) or not _chunks_of(state):
        raise damaged(path, "has no key `model`")
    return state


def _chunks_of(state: Mapping[str, Any]) -> list[Any]:
    """Return a rank's chunks of the model in their order: one, or with a virtual pipeline several."""
    keys = [str(key) for key in state if _CHUNK.fullmatch(str(key))]
    return [state[key] for key in sorted(keys, key=lambda key: int(key.removeprefix("model") or 0))]


def _all_ranks(folder: Path, names: list[str], args: Mapping[str, Any]) -> list[_RankFile]:
    experts = args.get("expert_model_parallel_size")
    has_experts = isinstance(experts, int) and experts > 1
    written = [re.findall(r"\d+", name) for name in names]
    is_one = len(set(map(len, written))) == 1
    sizes = [max(map(int, axis)) + 1 for axis in zip(*written, strict=True)] if is_one else []
    if not is_one or math.prod(sizes) > _MOST_RANKS:
        msg = f"{folder} has {names[0]} and {names[-1]}, which are of different layouts.\nRemove those of one layout."
        raise CheckpointError(msg)
    axes = [[f"{number:0{len(one)}d}" for number in range(size)] for size, one in zip(sizes, written[0], strict=True)]
    expected = ["mp_rank_" + "_".join(each) for each in product(*axes)]
    if missing := [name for name in expected if name not in names]:
        count = f"{len(missing)} of its {len(expected)} ranks"
        raise lacking(folder, f"the folders of {count}: {some_of(missing)}")
    ranks = []
    for name, numbers in zip(names, written, strict=True):
        tensor, *rest = map(int, numbers)
        expert = rest.pop() if has_experts and rest else 0
        ranks.append(_RankFile(tensor, rest[0] if rest else 0, expert, folder / name / FILE))
    return ranks


def _weights(ranks: list[_RankFile], first: dict[str, Any], tensor: int, *, is_tied: bool) -> tuple[Shapes, int]:
    """Return the whole shapes of all weights, named by stage, chunk and name, and the number of layers."""
    shapes: Shapes = {}
    layers: dict[tuple[int, int], int] = {}
    for rank in ranks:
        if rank.tensor > 0:
            continue
        for number, chunk in enumerate(_chunks_of(first if rank is ranks[0] else _state(rank.file))):
            weights = weight_names.flat_weights(chunk)
            if rank.stage > 0:
                weights = {name: weight for name, weight in weights.items() if not _is_copy(name, is_tied=is_tied)}
            layers[rank.stage, number] = weight_names.number_of_layers(weights)
            for name, weight in weights.items():
                expert = rank.expert if ".experts." in name else 0
                shapes[f"{rank.stage}/{number}/{expert}/{name}"] = weight_names.whole_shape(name, weight.shape, tensor)
    return shapes, sum(layers.values())


def _is_copy(name: str, *, is_tied: bool) -> bool:
    """Say whether a weight of a later stage is the embedding once more, as megatron-core's output layer may be."""
    return _COPY.search(name) is not None or (is_tied and name.endswith(OUTPUT))


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of Megatron-LM, or None if the folder is of another format."""
    names = _rank_folders(folder)
    if not names:
        return None
    first = _state(folder / names[0] / FILE)
    args = weight_names.args_of(first)
    ranks = _all_ranks(folder, names, args)
    tensor, stages = max(rank.tensor for rank in ranks) + 1, max(rank.stage for rank in ranks) + 1
    if is_mixture(args) or any(rank.expert for rank in ranks):
        msg = f"{folder} has experts (num_experts) in files of one rank each, which are not read.\n"
        msg += "Load it in the Megatron-LM that wrote it, and save it with --ckpt-format torch_dist."
        raise CheckpointError(msg)
    states = {(rank.stage, rank.tensor): first if rank is ranks[0] else _state(rank.file) for rank in ranks}
    rank_parts.require_one_save([(rank.file, states[rank.stage, rank.tensor]) for rank in ranks])
    is_untied = {**args, **given}.get("untie_embeddings_and_output_weights")
    parts, old_order = _parts(folder, _chunks_of_stages(ranks, states, tensor, stages), is_untied=is_untied)
    shapes = {name: weight_names.whole_shape(name, each[0].shape, tensor) for name, each in parts.items()}
    sizes = {"model_parallel_size": tensor, "tensor_model_parallel_size": tensor}
    sizes |= {"pipeline_model_parallel_size": stages, "num_layers": weight_names.number_of_layers(shapes)}
    weight_names.require_sizes(folder, args, sizes)
    model = model_weights.model_section(folder, settings_of(folder, args, shapes), given)
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
        iteration=None if folder.name == RELEASE else weight_names.whole_number(first, "iteration"),
        consumed_samples=weight_names.whole_number(args, "consumed_train_samples"),
        schedule=schedule_of(first),
    )
    return model_weights.require_expected(weights)


def _chunks_of_stages(
    ranks: list[_RankFile], states: Mapping[tuple[int, int], dict[str, Any]], tensor: int, stages: int
) -> list[list[tuple[Path, Any]]]:
    """Return file and state of the tensor-parallel ranks of each chunk, in the order of the model's layers.

    Chunk v of stage p comes after the chunks v of the stages before it, and after all stages' chunks before v
    (get_transformer_layer_offset in megatron/core/transformer/transformer_layer.py).
    """
    files = {(rank.stage, rank.tensor): rank.file for rank in ranks}
    chunks = {place: _chunks_of(state) for place, state in states.items()}
    count = len(chunks[0, 0])
    for place, found in chunks.items():
        if len(found) != count:
            raise mixed_files(files[place], f"has {len(found)} chunks of the model, and {files[0, 0]} has {count}")
    return [
        [(files[stage, rank], chunks[stage, rank][chunk]) for rank in range(tensor)]
        for chunk in range(count)
        for stage in range(stages)
    ]


def _parts(folder: Path, chunks: list[list[tuple[Path, Any]]], *, is_untied: object) -> tuple[_Parts, set[str]]:
    """Return all parts by our names, and which of them have an order of rows that depends on the version."""
    parts: _Parts = {}
    old_order: set[str] = set()
    copies: set[str] = set()
    layers = 0
    for number, ranks in enumerate(chunks):
        found = rank_parts.by_name([(path, rank_parts.weights_in(path, state)) for path, state in ranks])
        if number > 0:
            copies |= {name for name in found if _is_copy(name, is_tied=is_untied is False)}
        ours = {name: OUTPUT if name in copies else weight_names.our_name(name, layers) for name in found}
        if unknown := [name for name, our in ours.items() if our is None]:
            raise rank_parts.not_known(ranks[0][0], unknown)
        for name, our in ours.items():
            if our is None or our in parts:
                raise mixed_files(folder, f"has {our} twice: {ranks[0][0]} holds it again as {name[:100]}")
            parts[our] = found[name]
            if "query_key_value." in name:  # its order of rows depends on the version
                old_order.add(our)
        layers += _layers_of(ranks[0][0], layers, [our for our in ours.values() if our is not None])
    if copies and EMBEDDING in parts and is_untied is not True:
        names = (EMBEDDING, min(copies))
        pairs = zip(parts[EMBEDDING], parts.pop(OUTPUT), strict=True)
        parts[EMBEDDING] = [equal_to(part, copy, folder, names) for part, copy in pairs]
    return parts, old_order


def _layers_of(path: Path, before: int, names: list[str]) -> int:
    numbers = {int(name.split(".")[2]) - before for name in names if name.startswith("decoder.layers.")}
    if numbers and max(numbers) + 1 != len(numbers):
        missing = next(number for number in range(len(numbers)) if number not in numbers)
        msg = f"{path} lacks the weights of its layer {missing}.\nCopy the file again."
        raise CheckpointError(msg)
    return len(numbers)
