"""Only the bridge replaces anything in another module: elsewhere nothing that was imported is assigned to."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from structure.sources import backends, core

if TYPE_CHECKING:
    from collections.abc import Iterator


ALLOWED = {
    "report/loggers/tensorboard.py": "threading.excepthook, Python's own place for it: TensorBoard's thread prints "
    "a traceback of an error that it also hands to us",
}
"""Modules outside the bridge that replace something, and why."""


def imported_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds by importing, at any level."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name.partition(".")[0] for node in nodes for alias in node.names}


def root(node: ast.expr) -> str:
    """Return the first name of a.b.c, of a[b].c and of a.b().c, or an empty string."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def patches(tree: ast.Module) -> Iterator[str]:
    """Yield assignments to, and deletions of, attributes of what was imported."""
    imported = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and root(node) in imported:
            yield f"{ast.unparse(node)}, line {node.lineno}"
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"setattr", "delattr"}
            and root(node.args[0]) in imported
        ):
            yield f"{ast.unparse(node)}, line {node.lineno}"


def test_nothing_outside_the_bridge_patches_anything():
    sources = [*(source for source in core() if not source.name.startswith("bridge/")), *backends()]
    found = {source.name: list(patches(source.tree)) for source in sources}
    assert {name for name, lines in found.items() if lines} == set(ALLOWED)


def test_the_bridge_does():
    assert any(list(patches(source.tree)) for source in core() if source.name.startswith("bridge/"))


def test_each_of_these_would_be_found():
    patched = (
        "import torch\ntorch.Tensor.view = None",
        "from megatron.core import optimizer\noptimizer.Adam = object",
        "from torch import nn\nsetattr(nn.Linear, 'forward', None)",
        "import a.b\ndel a.b.c",
        "def f():\n    import torch\n    torch.compile, x = None, 1",
    )
    for code in patched:
        assert len(list(patches(ast.parse(code)))) == 1, code
    for code in ("import os\nos.environ['A'] = 'b'", "import torch\ntensor = torch.ones(1)\ntensor.grad = None"):
        assert list(patches(ast.parse(code))) == [], code
