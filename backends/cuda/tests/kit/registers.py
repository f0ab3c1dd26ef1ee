"""Compiles the Triton kernels for GPUs that are not here, and says how many registers and spilled bytes each needs.

    python -m kit.registers [--write] [--only TEXT] [CAPABILITY ...]      in backends/cuda/tests; 80 90 100

prints it as JSON, or with --write makes registers.json of it: what is asked and the kernel -> capability -> registers
and bytes of local memory of a thread, threads of a program; and a hash of the kernels' source, by which a test sees
without a compilation that the table is of these kernels. Nothing is launched. The numbers are those of the ptxas
that Triton brings, for one version of Triton.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
from pathlib import Path

import triton

import pretrain_cuda
from kit.offline import compiling, resources

TABLE = Path(__file__).parents[1] / "registers.json"
KERNELS = Path(pretrain_cuda.__file__).parent / "kernels/triton"
CAPABILITIES = (80, 90, 100)


def measure(capabilities: list[int], only: str = "") -> dict[str, dict[str, list[int]]]:
    """Return the table's rows whose names contain `only`."""
    from kit.register_calls import CALLS

    found: dict[str, dict[str, list[int]]] = {}
    for capability in capabilities:
        for operation, calls in CALLS.items():
            for asked, call in calls():
                name = f"{operation}: {asked}"
                if only not in name:
                    continue

                def note(kernel_name, kernel, name=name, capability=capability):
                    row = found.setdefault(f"{name}: {kernel_name}", {})
                    used = resources(kernel)
                    row[str(capability)] = [used["registers"], used["stack"], used["threads"]]

                with compiling(capability, note):
                    call()
    return found


def source_hash() -> str:
    """Return a hash of the kernels' files and of what is asked of them; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for file in (*sorted(KERNELS.glob("*.py")), Path(__file__).with_name("register_calls.py")):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
                node.body = [part for part in node.body if not _is_text(part)]
        digest.update(repr(_plain(tree)).encode())
    return digest.hexdigest()


def _plain(node: object) -> object:
    """Return a tree as tuples, equal in every release of Python: newer ones add fields, which are empty here."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return type(node).__name__, *((name, _plain(value)) for name, value in fields)
    return [_plain(each) for each in node] if isinstance(node, list) else node


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("capabilities", type=int, nargs="*", default=CAPABILITIES)
    asked = parser.parse_args()
    rows = measure(asked.capabilities, asked.only)
    if not asked.write:
        print(json.dumps(rows))
        return
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    head = f' "triton": "{triton.__version__}",\n "source": "{source_hash()}",\n'
    TABLE.write_text(f'{{\n{head} "kernels": {{\n{lines}\n }}\n}}\n')


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    main()
