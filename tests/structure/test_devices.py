"""The core names no device and no vendor's library: code that depends on the device asks the backend.

ruff's banned-api sees `torch.cuda`. This sees the rest: `tensor.cuda()`, `is_cuda`, "cuda", imports of vendors'
kernels.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from structure.sources import core

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = ("cuda", "npu", "xpu", "hpu", "mlu", "musa", "rocm", "hip")
LIBRARIES = ("amp_c", "apex", "flash_attn", "torch_npu", "transformer_engine", "triton", "xformers")
NAMES = {*DEVICES, *(f"is_{device}" for device in DEVICES), *LIBRARIES, "cudart", "nvtx"}
WORDS = re.compile(rf"\b({'|'.join(sorted(NAMES))})\b", re.IGNORECASE)
IN_TEXT = re.compile(
    r"(?<![a-z])(cuda|npu|xpu|rocm|nvidia|ascend|huawei|nccl|hccl|cann|apex|triton|flash[-_]attn|transformer[-_]engine)"
    r"(?![a-z])",
    re.IGNORECASE,
)

ALLOWED = {
    "plugins/host/discovery.py": "FIRST_PARTY: the names of this project's own distributions, for 'how do I get it'",
    "report/environment_file.py": "prefixes of the environment variables that a run records",
    "tools/migrate/megatron/model.py": "the names of other programs' flags, such as --use-flash-attn",
    "training/safeguards/rank_watch.py": "the older name of a variable that torch reads",
    "tools/migrate/sources/command_layers.py": "programs that stand before a command, such as nvidia-smi",
    "tools/migrate/cell/namespaces.py": "programs of devices, which a script in the cell does not reach",
    "conformance/suite.py": "an example in an error message: BACKEND = ...",
}
"""Files whose strings may name one, and why."""

MEGATRON_CORE_S = {"cuda", "nvtx", "is_cuda", "apex"}
"""Names that the bridge may use: megatron-core's own, to which it gives a meaning on every device."""


def named_in_code(tree: ast.Module) -> Iterator[str]:
    """Yield identifiers, attributes and imported modules that name a device or a vendor's library."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                words = [name]
            case ast.Import(names=names):
                words = [word for alias in names for word in alias.name.split(".")]
            case ast.ImportFrom(module=module, names=names):
                words = [*(module or "").split("."), *(alias.name for alias in names)]
            case _:
                continue
        yield from (f"{word}, line {node.lineno}" for word in words if word.lower() in NAMES)


def named_in_strings(tree: ast.Module) -> Iterator[str]:
    """Yield what strings name; docstrings and other strings that are never used may give examples."""
    unused = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unused:
            yield from (f"{found[0]}, line {node.lineno}" for found in IN_TEXT.finditer(node.value))


def without_bridge():
    return [source for source in core() if not source.name.startswith("bridge/")]


def test_code_names_no_device():
    written = [source for source in without_bridge() if WORDS.search(source.text)]
    found = {source.name: list(named_in_code(source.tree)) for source in written}
    assert {name: words for name, words in found.items() if words} == {}


def test_strings_name_no_device_except_where_that_is_the_point():
    named = {source.name: list(named_in_strings(source.tree)) for source in without_bridge()}
    found = {name: words for name, words in named.items() if words}
    assert set(found) == set(ALLOWED), found


def test_the_bridge_names_what_megatron_core_says_and_no_vendor():
    for source in core():
        if source.name.startswith("bridge/"):
            found = [*named_in_code(source.tree), *named_in_strings(source.tree)]
            assert {word.partition(",")[0].lower() for word in found} <= MEGATRON_CORE_S, source.name


def test_each_of_these_would_be_found():
    code = (
        "torch.cuda.synchronize()", "tensor.cuda()", "if tensor.is_cuda: pass", "import torch.cuda",
        "from torch import cuda", "from torch.cuda import Stream", "import flash_attn", "torch.npu.empty_cache()",
    )  # fmt: skip
    for line in code:
        assert len(list(named_in_code(ast.parse(line)))) == 1, line
    for line in ("device = 'cuda'", "f'cuda:{index}'", "os.environ['HCCL_PORT'] = '1'", "x = 'no NPU'"):
        assert len(list(named_in_strings(ast.parse(line)))) == 1, line
    for line in ("'''On \"cuda\" this is a docstring.'''", "json.dump(x)", "x = 'input dumps'"):
        assert [*named_in_code(ast.parse(line)), *named_in_strings(ast.parse(line))] == [], line
