"""Docstrings, comments and names of code that is installed or run: the field's terms, nothing that goes out of date."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from structure.sources import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("core/", "backends/cuda/src/", "backends/ascend/src/", "backends/ascend/simulator/", "benchmarks/")

QUESTIONS = (
    "what whatever which whose whether how where who when while why is are does was has if as from to because so and"
)
"""Opening words of an indirect question or a subordinate clause. A docstring opens with a noun or a verb."""

LINE_NUMBER = re.compile(r"\b[\w/]+\.(?:py|cpp|cu|cuh|h|hpp)(?::|,? (?:lines? )?)\d+|\blines? \d+")
"""A place in another library's file: the next release moves it. The function's name stays."""

RIDDLES = re.compile(
    r"without[ _]a[ _]word|last[ _]words|hopeless|hurry|in 16 bits|leave[ _]with[ _]parent|die[ _]with|unfit|chip_fit"
    r"|is no document|user's to mend|\banew\b|\bmend(s|ed)?\b|for[ _]ever\b|what[ _]happens[ _]anyway|told[ _]apart"
    r"|is[ _]no[ _]multiple",
    re.IGNORECASE,
)
"""Idiom of this repository's past, in place of the field's terms."""

PYTHON = [path for path in tracked() if path.suffix == ".py" and path.as_posix().startswith(FOLDERS)]


def faults_of(text: str) -> Iterator[str]:
    """Yield "line: what" for everything in a module's text that breaks a rule."""
    nodes = list(ast.walk(ast.parse(text)))
    for line, docstring in _docstrings(nodes):
        opening = re.match(r"\W*(\w+)", docstring)
        if opening and opening[1].lower() in QUESTIONS.split():
            yield f"{line}: begins with {opening[1]!r}"
    comments = _comments(text) if LINE_NUMBER.search(text) else ()  # it takes long to find them
    for line, prose in [*_strings(nodes), *comments]:
        yield from (f"{line}: cites {found[0]!r}" for found in LINE_NUMBER.finditer(prose))
    if RIDDLES.search(text):
        for number, content in enumerate(text.splitlines(), 1):
            yield from (f"{number}: says {found[0]!r}" for found in RIDDLES.finditer(content))


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def _strings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield strings that are statements: docstrings, those of variables included."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_the_rules_hold(path: Path):
    assert list(faults_of((ROOT / path).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"""How many cores there are."""', "1: begins with 'How'"),
        ('class A:\n    """`Whether` it is."""', "1: begins with 'Whether'"),
        ('def f():\n    """Is it?"""', "1: begins with 'Is'"),
        ("x = 1  # stage3.py 1163 reads it", "1: cites 'stage3.py 1163'"),
        ('X = 1\n"""engine.py:15, too."""', "2: cites 'engine.py:15'"),
        ("# optimizer/__init__.py, lines 13 to 34", "1: cites 'optimizer/__init__.py, lines 13'"),
        ("HOPELESS = 3", "1: says 'HOPELESS'"),
        ("def leave_with_parent(): ...", "1: says 'leave_with_parent'"),
    ],
)
def test_it_would_be_found(text, fault):
    assert list(faults_of(text)) == [fault]


@pytest.mark.parametrize("text", ['"""Whole files."""', '"""Towers."""', 'x = "data.py:3"', "# engine.py reads 3"])
def test_harmless_text_is_not(text):
    assert list(faults_of(text)) == []
