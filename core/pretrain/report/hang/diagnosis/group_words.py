"""Process groups and collectives in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.rank_names import rank_names

if TYPE_CHECKING:
    from pretrain.plugins.collective_record import CalledCollective

_WORDS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp (host)",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp (host)",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "tp x pp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp x dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp x dp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp x cp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "position embedding",
}
"""megatron-core's descriptions of its groups -> ours. Others stay as they are."""

_NAMELESS = {"", "default_pg", "undefined"}
"""torch's descriptions of the world's group, and of one that was made without a description."""


def group_words(collective: CalledCollective) -> str:
    """Return "group tp", or the ranks where the group has no description."""
    if collective.group == "default_pg":
        return "all ranks"
    if collective.group in _NAMELESS:
        return f"a group of {rank_names(collective.ranks)}" if collective.ranks else "a group without a name"
    return f"group {_WORDS.get(collective.group, collective.group)}"


def operation_words(collective: CalledCollective) -> str:
    """Return "all-reduce", or a message in megatron-core's name for it."""
    operation = collective.operation or "a collective"
    return operation if "forward" in operation or "backward" in operation else operation.replace("_", "-")


def collective_words(collective: CalledCollective, *, with_shapes: bool = False) -> str:
    """Return "all-reduce of group tp", with the shapes "all-reduce of group tp [4, 256] float32"."""
    words = f"{operation_words(collective)} of {group_words(collective)}"
    if collective.is_message and collective.peer != NO_PEER:
        words = f"{operation_words(collective)} with rank {collective.peer} ({group_words(collective)})"
    return f"{words} {shape_words(collective)}".rstrip() if with_shapes else words


def shape_words(collective: CalledCollective) -> str:
    """Return "[4, 256] float32", at most two shapes; empty for a barrier."""
    shapes = [str(list(shape)) for shape in collective.shapes[:2]]
    more = ["..."] if len(collective.shapes) > 2 else []
    return " ".join([*shapes, *more, collective.dtype]).strip()
