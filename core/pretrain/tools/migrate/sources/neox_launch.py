"""Number of processes that GPT-NeoX's own settings start.

`get_deepspeed_main_args` (megatron/neox_arguments/arguments.py) hands num_gpus, num_nodes and hostfile to DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.sources.source import Launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Setting

_ALL, _EACH, _NODES, _HOSTS = "global_num_gpus", "num_gpus", "num_nodes", "hostfile"


def launch_of(settings: Mapping[str, Setting]) -> Launch | None:
    """Return the launch that settings state; None if they state none.

    Devices of a node alone are not counted as processes: the number of nodes is then that of a list of hosts.

    Args:
        settings: by name, with underscores.
    """
    stated = [settings[name] for name in (_ALL, _EACH, _NODES, _HOSTS) if _is_said(settings, name)]
    place = next((setting.place for setting in stated if setting.place is not None), None)
    if place is None:
        return None
    nproc, nnodes = _processes(_count(settings, _ALL), _count(settings, _EACH), _count(settings, _NODES))
    hosts = settings[_HOSTS].value if _is_said(settings, _HOSTS) else ""
    return Launch(place, nproc, nnodes, hosts)


def _processes(every: int | None, each: int | None, nodes: int | None) -> tuple[int | None, int | None]:
    """Return the processes of a node, and the nodes, where two of the three counts tell both."""
    if each and nodes:
        return each, nodes
    if every and nodes and every % nodes == 0:
        return every // nodes, nodes
    if every and each and every % each == 0:
        return each, every // each
    return None, nodes


def _is_said(settings: Mapping[str, Setting], name: str) -> bool:
    if name == _HOSTS:
        return name in settings and isinstance(settings[name].value, str) and bool(settings[name].value)
    return _count(settings, name) is not None


def _count(settings: Mapping[str, Setting], name: str) -> int | None:
    """Return a count; GPT-NeoX's -1 is none."""
    value = settings[name].value if name in settings else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
