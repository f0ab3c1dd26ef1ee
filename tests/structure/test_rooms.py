"""Files, functions and folders keep the sizes of docs/design.md. There is no list of exceptions."""

from __future__ import annotations

import ast
import re

from structure.sources import ROOT, backends, core, tracked

FILE_LINES = 400
FUNCTION_LINES = 60
FOLDER_MODULES = 20
FOLDER_LEVELS = 3
"""Below core/pretrain, of a tool below the tool."""

LINE_NUMBER = re.compile(r"\b[\w/]+\.(?:py|cpp|cu|cuh|h|hpp)(?::|,? (?:lines? )?)\d+|#.*\blines? \d+")
"""A place in another library's file, which the next release moves. The function's name stays."""


def long_functions(tree: ast.Module) -> list[str]:
    """Return the functions that are too long, by name and line."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {f"{node.name}, line {node.lineno}": (node.end_lineno or 0) - node.lineno + 1 for node in found}
    return [name for name, count in lines.items() if count > FUNCTION_LINES]


def test_no_file_and_no_function_is_long():
    sources = [*core(), *backends()]
    assert [source.name for source in sources if len(source.text.splitlines()) > FILE_LINES] == []
    assert {source.name: found for source in sources if (found := long_functions(source.tree))} == {}


def test_no_folder_is_crowded():
    folders = [path.parent.as_posix() for path in tracked() if path.suffix == ".py" and path.name != "__init__.py"]
    assert {folder for folder in folders if folders.count(folder) > FOLDER_MODULES} == set()


def levels(name: str) -> int:
    """Return the folders above a file of core/pretrain, without that of a tool."""
    folders = name.split("/")[:-1]
    return len(folders[2:] if folders[:1] == ["tools"] else folders)


def defined(tree: ast.Module) -> list[str]:
    """Return the functions and classes that a module defines."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in tree.body if isinstance(node, kinds)]


def test_no_folder_is_deep():
    assert [source.name for source in core() if levels(source.name) > FOLDER_LEVELS] == []


def test_no_package_file_has_logic():
    packages = [source for source in core() if source.name.endswith("/__init__.py")]
    assert packages
    assert {source.name: found for source in packages if (found := defined(source.tree))} == {}


def test_no_text_cites_a_line_of_another_file():
    shipped = ("core/", "backends/cuda/src/", "backends/ascend/src/", "backends/ascend/simulator/", "benchmarks/")
    python = [path for path in tracked() if path.suffix == ".py" and path.as_posix().startswith(shipped)]
    texts = {path.as_posix(): (ROOT / path).read_text(encoding="utf-8") for path in python}
    assert {path: found for path, text in texts.items() if (found := LINE_NUMBER.findall(text))} == {}


def test_each_of_these_would_be_found():
    assert long_functions(ast.parse("@mark\ndef f(a,\n  b):\n" + "    pass\n" * 58)) == []
    assert long_functions(ast.parse("@mark\ndef f(a,\n  b):\n" + "    pass\n" * 59)) == ["f, line 2"]
    assert levels("a/b/c/d.py") == levels("tools/plan/a/b/c/d.py") == 3
    assert defined(ast.parse('"""Doc."""\nX = 1\nclass A: ...\ndef f(): ...\n')) == ["A", "f"]
    for text in (
        "x = 1  # stage3.py 1163 reads it",
        '"""engine.py:15"""',
        "# __init__.py, lines 13 to 34",
        "# see line 5",
    ):
        assert LINE_NUMBER.search(text), text
    for text in ('"""Line 3 of a recipe."""', "# engine.py reads 3", 'f"{path}, line {number}"'):
        assert not LINE_NUMBER.search(text), text
