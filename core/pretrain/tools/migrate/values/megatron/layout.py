"""Keys of the sections `parallel` and `recompute` that several flags make together.

validate_args (megatron/training/arguments.py); --checkpoint-activations of the versions before 2022 recomputes whole
layers, in chunks of --checkpoint-num-layers or by --activations-checkpoint-method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.values.megatron.layout_text import LAYOUT, chunks_of_layout, pipeline_stages
from pretrain.tools.migrate.values.megatron.stated_place import place_of
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Switches by which the embedding, or the loss, counts as one more layer."""

_METHODS = ("recompute_method", "activations_checkpoint_method")
_LAYERS = ("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers")
_SPLIT = ("distribute_saved_activations", "distribute_checkpointed_activations", "partition_activations")


def tensor_model_parallel_size(settings: Settings) -> Worked | None:
    """Return the ranks of a layer, which the versions of 2019 call --model-parallel-size."""
    return _first(settings, ("tensor_model_parallel_size", "model_parallel_size"))


def virtual_pipeline_model_parallel_size(settings: Settings) -> Worked | None:
    """Return the chunks of a stage, which the source gives as such or by the layers of one.

    Raises:
        MigrateError: the layers of a stage are no multiple of those of a chunk.
    """
    if (counted := chunks_of_layout(settings)) is not None:
        return Worked(counted if counted > 1 else None, (LAYOUT,))
    chunks = settings.value("num_virtual_stages_per_pipeline_rank")
    if chunks is not None:
        return Worked(chunks if chunks > 1 else None, ("num_virtual_stages_per_pipeline_rank",))
    name = "num_layers_per_virtual_pipeline_stage"
    layers, stages = settings.value("num_layers"), pipeline_stages(settings)
    chunk = settings.value(name)
    if chunk is None or not layers:
        return None
    ends = sum(bool(settings.value(counted)) for counted in COUNTED)
    with_ends = f"{layers} layers" + f" and {ends} for embedding or loss" * bool(ends)
    if chunk < 1 or (layers + ends) % (stages * chunk):
        place = place_of(settings, name)
        msg = f"{place}: chunks of {chunk} do not divide {with_ends} on {stages} stages.\nChange one of the three."
        raise MigrateError(msg)
    per_stage = (layers + ends) // stages
    note = f"{per_stage} layers of a stage / {chunk}"
    return Worked(per_stage // chunk if per_stage > chunk else None, (name,), note)


def sequence_parallel(settings: Settings) -> Worked | None:
    """Return whether norms and dropout are split; without tensor parallelism the source switches it off itself."""
    given = settings.value("sequence_parallel")
    ranks = tensor_model_parallel_size(settings)
    if given and (ranks is None or ranks.value == 1):
        why = "the program switches it off itself without tensor parallelism"
        return Worked(None, (), idle=(("sequence_parallel", why),))
    return None if given is None else Worked(given, ("sequence_parallel",))


def overlap_p2p_comm(settings: Settings) -> Worked | None:
    """Return whether the interleaved schedule overlaps its messages; others have none to overlap."""
    given = settings.value("overlap_p2p_comm")
    chunks = virtual_pipeline_model_parallel_size(settings)
    if given is None or chunks is None or chunks.value is None:
        return None
    return Worked(given, ("overlap_p2p_comm",))


def granularity(settings: Settings) -> Worked:
    """Return what is computed again."""
    names = ("checkpoint_activations", "activations_checkpoint_method", "recompute_granularity")
    if settings.value("checkpoint_activations") or settings.value("activations_checkpoint_method"):
        return Worked("full", names[:2])
    if settings.value("recompute_activations"):
        return Worked("selective", ("recompute_activations",))
    given = settings.value("recompute_granularity", "none")
    return Worked(given if given in {"full", "selective"} else "none", names)


def method(settings: Settings) -> Worked | None:
    """Return which layers keep their input; before it could be chosen it was every chunk of layers."""
    if granularity(settings).value != "full":
        return None
    return _first(settings, _METHODS) or Worked("uniform", ("checkpoint_activations",))


def num_layers(settings: Settings) -> Worked | None:
    """Return the layers of a group, or the layers that are computed again."""
    return None if granularity(settings).value != "full" else _first(settings, _LAYERS) or Worked(1, ())


def distribute_saved_activations(settings: Settings) -> Worked | None:
    """Return whether kept activations are split over the tensor-parallel ranks."""
    ranks = tensor_model_parallel_size(settings)
    name = next((name for name in _SPLIT if settings.value(name)), None)
    if name is None:
        return None
    if granularity(settings).value != "full":
        return Worked(None, (), idle=((name, "only whole recomputed layers have such activations"),))
    if ranks is None or ranks.value == 1:
        return Worked(None, (), idle=((name, "one rank has nothing to split"),))
    return Worked(True, (name,))


def _first(settings: Settings, names: tuple[str, ...]) -> Worked | None:
    """Return the setting that is stated, else the first with a default."""
    stated: Any = next((name for name in names if name in settings.stated), None)
    name = stated or next((name for name in names if settings.value(name) is not None), None)
    value = None if name is None else settings.value(name)
    return None if name is None or value is None else Worked(value, (name,))
