"""Ranks agree over trees of small groups: nothing else makes a group, or gathers objects of all ranks on each."""

from __future__ import annotations

import ast

from structure.sources import backends, core

CALLS = {"new_group", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
ALLOWED = {
    "collectives.py": "the trees",
    "bridge/megatron/planning.py": "replaces torch's functions for a plan, which has one process",
    "checkpoint/copies/node_shares.py": "ranks of one data-parallel group tell each other at a start what they hold",
    "conformance/pair_checks.py": "two ranks that compare a backend's collectives",
    "tools/doctor/ranks/links.py": "measures the device's own groups",
}
"""Modules that call them, and why."""


def calls(tree: ast.Module) -> set[str]:
    """Return which of them a module names."""
    return CALLS & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_only_the_trees_gather_objects_or_make_groups():
    found = {source.name for source in (*core(), *backends()) if calls(source.tree)}
    assert found == set(ALLOWED)


def test_such_a_call_would_be_found():
    assert calls(ast.parse("import torch.distributed as dist\ndist.all_gather_object(found, own)"))
