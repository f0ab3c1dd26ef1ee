"""Translate CUDA names in megatron-core's source to another device.

megatron-core 0.16.1 writes `torch.cuda`, `device="cuda"`, `tensor.cuda()` in 94 files and binds many of them at import.
Instead of replacing attributes of torch for the whole process, each megatron module is compiled from a syntax tree in
which those names refer to one object, `DEVICE`, that the bridge puts into the module. torch itself, the installed files
and every other library stay unchanged, and a training step costs no extra time.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import TypeVar

NodeT = TypeVar("NodeT", bound=ast.AST)

DEVICE = "_pretrain_device"
"""The global name under which a translated module finds its `DeviceNames`."""

REVISION = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
"""Part of the bytecode cache's name, so that another translation has other files."""


class Translator(ast.NodeTransformer):
    """Redirect every CUDA name of one module.

    | megatron-core writes          | the module runs                  | seen in (0.16.1)                              |
    |-------------------------------|----------------------------------|-----------------------------------------------|
    | torch.cuda.X                  | DEVICE.X                         | everywhere                                    |
    | from torch.cuda import X as Y | Y = DEVICE.X                     | tensor_parallel/random.py                     |
    | "cuda"                        | DEVICE.type                      | get_grad_norm_fp32, forward_step              |
    | "cuda:"                       | DEVICE.type + ":"                | distributed/fsdp (optional)                   |
    | "torch.cuda.HalfTensor"       | DEVICE.type_name("HalfTensor")   | Float16OptimizerWithFloat16Params.__init__    |
    | x.cuda(...)                   | DEVICE.move(x, ...)              | MegatronOptimizer.restore_from_cpu            |
    | x.is_cuda                     | DEVICE.holds(x)                  | MegatronOptimizer.offload_to_cpu              |
    | torch.compile                 | DEVICE.compile                   | enable_jit_fuser                              |
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`torch.cuda`, `torch.compile`, `x.is_cuda`."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            if node.attr == "cuda":
                return _at(node, ast.Name(DEVICE, ast.Load()))
            if node.attr == "compile":
                return _at(node, _member("compile"))
        if node.attr == "is_cuda" and isinstance(node.ctx, ast.Load):
            return _at(node, ast.Call(_member("holds"), [node.value], []))
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`x.cuda(...)`."""
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "cuda":
            return _at(node, ast.Call(_member("move"), [function.value, *node.args], node.keywords))
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """The device's name, as a whole string."""
        if node.value == "cuda":
            return _at(node, _member("type"))
        if node.value == "cuda:":
            return _at(node, ast.BinOp(_member("type"), ast.Add(), ast.Constant(":")))
        if isinstance(node.value, str) and node.value.startswith("torch.cuda.") and node.value.endswith("Tensor"):
            name = ast.Constant(node.value.removeprefix("torch.cuda."))
            return _at(node, ast.Call(_member("type_name"), [name], []))
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Redirect `f"cuda:{index}"`; inside an f-string a constant cannot be replaced by an expression."""
        values: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.Constant) and value.value == "cuda:":
                values += [ast.FormattedValue(_member("type"), -1, None), ast.Constant(":")]
            elif isinstance(value, ast.Constant):
                values.append(value)
            else:
                values.append(self.visit(value))
        return _at(node, ast.JoinedStr(values))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        """Redirect `from torch.cuda import ...`; submodules such as torch.cuda.memory import on any machine."""
        if node.module != "torch.cuda":
            return node
        return [
            _at(node, ast.Assign([ast.Name(name.asname or name.name, ast.Store())], _member(name.name)))
            for name in node.names
        ]


def translate(source: bytes | str, filename: str) -> ast.Module:
    """Return the module's syntax tree with its CUDA names redirected; line numbers are those of the file."""
    tree = Translator().visit(ast.parse(source, filename))
    return ast.fix_missing_locations(tree)  # type: ignore[no-any-return]


def _member(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(DEVICE, ast.Load()), name, ast.Load())


def _at(place: ast.AST, node: NodeT) -> NodeT:
    return ast.copy_location(node, place)
