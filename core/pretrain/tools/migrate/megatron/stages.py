"""Text of --pipeline-model-parallel-layout: layers of stages, letter by letter.

PipelineParallelLayerLayout (megatron/core/transformer/pipeline_parallel_layer_layout.py): E is the embedding, t a
layer, L the loss, m a layer of multi-token prediction; "|" ends a stage, and "*3" repeats the letter or the
parentheses before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings


STAGE_LAYOUT = "pipeline_model_parallel_layout"

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


def chunks_of_layout(settings: Settings) -> int | None:
    """Return the chunks of a stage that a layout makes; None without one."""
    parts, stages = parts_of_layout(settings), pipeline_stages(settings)
    if parts is None:
        return None
    if len(parts) % stages:
        raise _refused(settings, str(settings.value(STAGE_LAYOUT)))
    return len(parts) // stages


def pipeline_stages(settings: Settings) -> int:
    """Return the number of pipeline stages."""
    name = "pipeline_model_parallel_size"
    stages = int(settings.value(name, 1))
    if stages < 1:
        msg = f"{place_of(settings, name)}: {stages} pipeline stages are too few.\nGive 1 for none, or more."
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
        f"{place_of(settings, STAGE_LAYOUT)}: {layout!r} is no layout of these stages.\n"
        "It has E, t, L and m, stages end with |, and *3 repeats: 'Et*3|(tt|)*2tL'."
    )


def place_of(settings: Settings, name: str) -> str:
    """Return "train.sh:24: --num-layers"; of a default the flag alone."""
    found = settings.setting(name)
    if found is None:
        return name
    return found.written if found.place is None else f"{found.place}: {found.written}"
