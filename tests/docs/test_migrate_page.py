"""docs/migrate.md agrees with the tables, and the README's example with the command."""

from __future__ import annotations

import re
from pathlib import Path

from migrate_page import PAGE, page
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources

ROOT = Path(__file__).parents[2]


def test_the_page_agrees_with_the_tables():
    present = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    assert present == page(present), "run: python docs/generate/migrate_page.py"


def test_the_example_of_the_readme_is_what_the_command_writes(tmp_path, monkeypatch):
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Bring your launch script")[2]
    script, recipe = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL)[1] for kind in ("bash", "yaml"))
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(script, encoding="utf-8")
    assert migrate(read_sources(["train.sh"], {"OUT": "out"}), MigrateOptions()).text == recipe
