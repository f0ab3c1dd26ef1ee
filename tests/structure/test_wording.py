"""No tracked file has unfinished work, paths of one machine, or addresses outside the list of allowed hosts."""

from __future__ import annotations

import re
from pathlib import Path

from structure.sources import ROOT, tracked

HOSTS = (
    "api.wandb.ai",  # a default of GPT-NeoX, in the table of its settings
    "arxiv.org",
    "docs.pytorch.org",
    "example.org",
    "gitee.com",
    "github.com",
    "json-schema.org",
    "www.apache.org",
    "www.w3.org",
    "127.0.0.1",
)
"""Allowed hosts of links. No package registry or mirror is among them: those differ between users."""

UNWANTED = {
    "unfinished work": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a path of one machine": re.compile(r"(?<![\w.$}<])/(work|root|home|Users|opt|mnt|nfs|scratch)/[\w.-]{2,}"),
    "an address": re.compile(rf"\bhttps?://(?!(?:{'|'.join(map(re.escape, HOSTS))})\b)[\w.-]+"),
}


def lines_with(pattern):
    """Return every tracked line that the pattern is found in, as "file:line: what"; this file has examples."""
    found = []
    for path in tracked():
        if path.name != Path(__file__).name:
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                found += [f"{path}:{number}: {word[0]}" for word in pattern.finditer(line)]
    return found


def test_no_tracked_file_has_any():
    assert {what: found for what, pattern in UNWANTED.items() if (found := lines_with(pattern))} == {}


def test_each_would_be_found():
    for what, line in (
        ("unfinished work", "# TODO: later"),
        ("a path of one machine", 'DATA = "/home/me/data"'),
        ("a path of one machine", "cd /mnt/disk"),
        ("an address", "pip install --index-url https://wheels.invalid/torch torch"),
    ):
        assert UNWANTED[what].search(line), line
    for what, line in (
        ("unfinished work", "XXXL is a size"),
        ("a path of one machine", '"HOME": "/home/x", data/work/more'),
        ("an address", "https://arxiv.org/abs/2001.08361"),
    ):
        assert not UNWANTED[what].search(line), line


def test_code_that_is_installed_and_the_documents_are_ascii():
    found = {}
    shown = {"backends", "core", "docs", "recipes", "README.md", "Makefile", "bootstrap"}
    for path in tracked():
        if path.parts[0] in shown:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
            found |= {f"{path}:{number}": line for number, line in enumerate(lines, 1) if not line.isascii()}
    assert found == {}
