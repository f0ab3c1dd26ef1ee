"""Files and functions stay small enough to be read in one go. There is no list of exceptions."""

from __future__ import annotations

import ast
import statistics

import pytest

from structure.sources import backends, core

FILE_LINES = 350
FUNCTION_LINES = 60
USUAL_FILE_LINES = 120
USUAL_FUNCTION_LINES = 10


def functions(tree: ast.Module) -> dict[str, int]:
    """Return the number of lines of every function, by name and line."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {f"{node.name}, line {node.lineno}": (node.end_lineno or 0) - node.lineno + 1 for node in found}


@pytest.fixture(scope="module", params=[core, backends], ids=["core", "backends"])
def sources(request):
    return request.param()


@pytest.fixture(scope="module")
def file_lines(sources):
    return {source.name: len(source.text.splitlines()) for source in sources}


@pytest.fixture(scope="module")
def function_lines(sources):
    return {f"{source.name}: {name}": lines for source in sources for name, lines in functions(source.tree).items()}


def test_no_file_is_long(file_lines):
    assert {name: lines for name, lines in file_lines.items() if lines > FILE_LINES} == {}


def test_no_function_is_long(function_lines):
    assert {name: lines for name, lines in function_lines.items() if lines > FUNCTION_LINES} == {}


def test_most_are_short(file_lines, function_lines):
    assert statistics.median(file_lines.values()) <= USUAL_FILE_LINES
    assert statistics.median(function_lines.values()) <= USUAL_FUNCTION_LINES


def test_the_whole_function_is_counted():
    source = "@mark\ndef outer(a,\n          b):\n    '''Doc.'''\n    def inner():\n        pass\n    return a\n"
    assert functions(ast.parse(source)) == {"outer, line 2": 6, "inner, line 5": 2}
