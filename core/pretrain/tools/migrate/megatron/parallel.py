"""The layout over the ranks: tensor parallelism, pipeline stages, recomputation."""

# Sources: validate_args; get_model in megatron/training/training.py; PipelineParallelLayerLayout in
# megatron/core/transformer/pipeline_parallel_layer_layout.py.

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Derived, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Switches by which the embedding, or the loss, counts as one more layer."""

_METHODS = ("recompute_method", "activations_checkpoint_method")
_LAYERS = ("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers")
_SPLIT = ("distribute_saved_activations", "distribute_checkpointed_activations", "partition_activations")


def tensor_model_parallel_size(settings: Settings) -> Derived | None:
    """Return the ranks of a layer, which the versions of 2019 call --model-parallel-size."""
    return _first(settings, ("tensor_model_parallel_size", "model_parallel_size"))


def context_parallel_size(settings: Settings) -> Derived | None:
    """Return the ranks of a sequence; masked tokens weigh otherwise where each of them takes the mean of its own."""
    name = "context_parallel_size"
    size, is_by_token = settings.value(name), settings.value("calculate_per_token_loss")
    if not size or size == 1 or not settings.value("eod_mask_loss") or is_by_token:
        return taken(settings, name)
    return Derived(size, (name,), "the loss is a mean over the whole sequence; there the mean of its ranks' means")


def virtual_pipeline_model_parallel_size(settings: Settings) -> Derived | None:
    """Return the chunks of a stage, which the source gives as such or by the layers of one."""
    parts, stages = parts_of_layout(settings), pipeline_stages(settings)
    if parts is not None:
        if len(parts) % stages:
            raise _refused(settings, str(settings.value(STAGE_LAYOUT)))
        return Derived(len(parts) // stages if len(parts) > stages else None, (STAGE_LAYOUT,))
    chunks = settings.value("num_virtual_stages_per_pipeline_rank")
    if chunks is not None:
        return Derived(chunks if chunks > 1 else None, ("num_virtual_stages_per_pipeline_rank",))
    name = "num_layers_per_virtual_pipeline_stage"
    layers, chunk = settings.value("num_layers"), settings.value(name)
    if chunk is None or not layers:
        return None
    ends = sum(bool(settings.value(counted)) for counted in COUNTED)
    with_ends = f"{layers} layers" + f" and {ends} for embedding or loss" * bool(ends)
    if chunk < 1 or (layers + ends) % (stages * chunk):
        place = place_of(settings, name)
        msg = f"{place}: {with_ends} on {stages} stages do not make chunks of {chunk}.\nChange one of the three."
        raise MigrateError(msg)
    per_stage = (layers + ends) // stages
    note = f"{per_stage} layers of a stage / {chunk}"
    return Derived(per_stage // chunk if per_stage > chunk else None, (name,), note)


def sequence_parallel(settings: Settings) -> Derived | None:
    """Return whether norms and dropout are split; without tensor parallelism the source switches it off itself."""
    given = settings.value("sequence_parallel")
    ranks = tensor_model_parallel_size(settings)
    if given and (ranks is None or ranks.value == 1):
        return unused("sequence_parallel", "the program switches it off itself without tensor parallelism")
    return taken(settings, "sequence_parallel")


def overlap_p2p_comm(settings: Settings) -> Derived | None:
    """Return whether the interleaved schedule overlaps its messages; others have none to overlap."""
    chunks = virtual_pipeline_model_parallel_size(settings)
    return None if chunks is None or chunks.value is None else taken(settings, "overlap_p2p_comm")


def _granularity(settings: Settings) -> Derived:
    names = ("checkpoint_activations", "activations_checkpoint_method", "recompute_granularity")
    if settings.value("checkpoint_activations") or settings.value("activations_checkpoint_method"):
        return Derived("full", names[:2])
    if settings.value("recompute_activations"):
        return Derived("selective", ("recompute_activations",))
    given = settings.value("recompute_granularity", "none")
    return Derived(given if given in {"full", "selective"} else "none", names)


def method(settings: Settings) -> Derived | None:
    """Return which layers keep their input; before it could be chosen it was every chunk of layers."""
    if _granularity(settings).value != "full":
        return None
    return _first(settings, _METHODS) or Derived("uniform", ("checkpoint_activations",))


def num_layers(settings: Settings) -> Derived | None:
    """Return the layers of a group, or the layers that are computed again."""
    return None if _granularity(settings).value != "full" else _first(settings, _LAYERS) or Derived(1, ())


def distribute_saved_activations(settings: Settings) -> Derived | None:
    """Return whether kept activations are split over the tensor-parallel ranks."""
    ranks = tensor_model_parallel_size(settings)
    name = settings.first_on(*_SPLIT)
    if not name:
        return None
    if _granularity(settings).value != "full":
        return unused(name, "only whole recomputed layers have such activations")
    if ranks is None or ranks.value == 1:
        return unused(name, "one rank has nothing to split")
    return Derived(True, (name,))


def _first(settings: Settings, names: tuple[str, ...]) -> Derived | None:
    """Return the setting that is stated, else the first with a default."""
    stated = next((name for name in names if name in settings.stated), "")
    return taken(settings, stated or settings.first(*names))


def pipeline_layers(settings: Settings) -> Derived | None:
    """Return the layers of every stage or chunk; None if all have as many."""
    layout = parts_of_layout(settings)
    if layout is not None:
        has_prediction = any("m" in part for part in layout)
        lost = ((STAGE_LAYOUT, "layers of multi-token prediction are left out"),) if has_prediction else ()
        return Derived([part.count("t") for part in layout], (STAGE_LAYOUT,), lost=lost)
    ends = tuple(name for name in COUNTED if settings.value(name))
    if not ends:
        return None
    chunks = virtual_pipeline_model_parallel_size(settings)
    parts = pipeline_stages(settings) * (1 if chunks is None else chunks.value or 1)
    total = settings.value("num_layers", 0) + len(ends)
    if total % parts or parts < 2:
        place = place_of(settings, ends[0])
        msg = f"{place}: {total} layers, embedding or loss included, are not a multiple of {parts} stages.\nChange one."
        raise MigrateError(msg)
    layers = [total // parts] * parts
    layers[0] -= COUNTED[0] in ends
    layers[-1] -= COUNTED[1] in ends
    return Derived(layers, ends)


STAGE_LAYOUT = "pipeline_model_parallel_layout"
"""E is the embedding, t a layer, L the loss, m a layer of multi-token prediction; "|" ends a stage, and "*3" repeats
the letter or the parentheses before it."""

_REPEATED = re.compile(r"(?:\(([^()]*)\)|([A-Za-z|]))\*(\d+)")
_MOST = 10_000


def parts_of_layout(settings: Settings) -> list[str] | None:
    """Return the letters of every stage, or of every chunk in the order of the layers; None without a layout."""
    given = settings.value(STAGE_LAYOUT)
    if given is None:
        return None
    parts = _expanded(settings, str(given)).split("|")
    if any(set(part) - set("EtLm") for part in parts):
        raise _refused(settings, str(given))
    return parts


def pipeline_stages(settings: Settings) -> int:
    """Return the number of pipeline stages."""
    name = "pipeline_model_parallel_size"
    stages = int(settings.value(name, 1))
    if stages < 1:
        msg = f"{place_of(settings, name)}: {stages} pipeline stages are too few.\nGive 1 for no pipeline, or more."
        raise MigrateError(msg)
    return stages


def _expanded(settings: Settings, layout: str) -> str:
    """Return a layout with its repetitions written out, without commas."""
    text = layout.replace(",", "").replace(" ", "")
    while found := _REPEATED.search(text):
        part, times = found[1] if found[1] is not None else found[2], int(found[3])
        if len(text) + len(part) * times > _MOST:
            raise _refused(settings, layout)
        text = text[: found.start()] + part * times + text[found.end() :]
    return text.replace("(", "").replace(")", "")


def _refused(settings: Settings, layout: str) -> MigrateError:
    return MigrateError(
        f"{place_of(settings, STAGE_LAYOUT)}: {layout!r} is not a layout of these stages.\n"
        "Give E, t, L and m, end stages with |, repeat with *3, such as 'Et*3|(tt|)*2tL'."
    )


def place_of(settings: Settings, name: str) -> str:
    """Return "train.sh:24: --num-layers"; of a default the flag alone."""
    found = settings.setting(name)
    if found is None:
        return name
    return found.written if found.place is None else f"{found.place}: {found.written}"


FUNCTIONS: Mapping[str, Function] = {
    "parallel.tensor_model_parallel_size": tensor_model_parallel_size,
    "parallel.context_parallel_size": context_parallel_size,
    "parallel.virtual_pipeline_model_parallel_size": virtual_pipeline_model_parallel_size,
    "parallel.pipeline_layers": pipeline_layers,
    "parallel.sequence_parallel": sequence_parallel,
    "parallel.overlap_p2p_comm": overlap_p2p_comm,
    "recompute.granularity": _granularity,
    "recompute.method": method,
    "recompute.num_layers": num_layers,
    "recompute.distribute_saved_activations": distribute_saved_activations,
}
