"""Search for names of CUDA in a translated module that the bridge does not know."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from pretrain.bridge.megatron.source_translation import DEVICE, translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.bridge.megatron.names import DeviceNames

CUDA_TEXT = re.compile(r"/?cuda(:.*)?|torch\.cuda\..*")
"""Strings that name the device; "cuda_graph" and sentences in messages do not."""


def unknown_names(source: str, filename: str, names: DeviceNames) -> list[str]:
    """Return "line: what" for every CUDA name that is left after the translation, or that `names` lacks."""
    tree = translate(source, filename)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"{node.lineno}: {found}"
        for node in ast.walk(tree)
        if id(node) not in documentation
        for found in (*_left(node), *_lacking(node, names))
    ]


def _left(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(attr="cuda" | "is_cuda"):
            yield ast.unparse(node)
        case ast.ImportFrom(module="torch", names=imported) if any(name.name == "cuda" for name in imported):
            yield ast.unparse(node)
        case ast.ImportFrom(module=str(module)) if re.match(r"torch\.cuda\b", module):
            yield ast.unparse(node)
        case ast.Import(names=imported) if any(re.match(r"torch\.cuda\b", name.name) for name in imported):
            yield ast.unparse(node)
        case ast.Constant(value=str(text)) if CUDA_TEXT.fullmatch(text):
            yield repr(text)


def _lacking(node: ast.AST, names: DeviceNames) -> Iterator[str]:
    """Yield the shortest part of DEVICE.a.b that does not exist, once for each chain."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == DEVICE) or not chain:
        return
    value: object = names
    for depth, name in enumerate(chain):
        if not hasattr(value, name):
            if depth == len(chain) - 1:
                yield f"torch.cuda.{'.'.join(chain)}"
            return
        value = getattr(value, name)
