"""docs/coming-from: the commands of a page write the keys that it shows, and those for torchtitan make a recipe."""

from __future__ import annotations

import re

import pytest
import yaml

from pretrain.cli.main import main
from pretrain.recipe import load_recipe
from structure.documents import command_lines
from structure.sources import ROOT
from tools.migrate.cell.namespaces import skip_scripts

FOLDER = ROOT / "docs" / "coming-from"
SOURCES = {
    "gpt-neox": ("yaml", "125M.yml", 0),
    "megatron-deepspeed": ("bash", "train.sh", 0),
    "megatron-lm": ("bash", "train.sh", 0),
    "mindspeed-llm": ("bash", "train.sh", 3),  # --spec is accepted, but not carried over
}
"""Page -> the language of its source's block, the source's name, and the exit code of migrate."""


def text_of(page):
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def rows(text):
    """Return the cells of the table that shows flags and keys."""
    table = re.search(r"^\| --- \| --- \|\n((?:\|.*\n)+)", text, re.MULTILINE)[1]
    return [line.strip("| ").split(" | ", 1) for line in table.splitlines()]


@pytest.mark.parametrize("page", SOURCES)
def test_the_commands_of_a_page_write_the_keys_that_it_shows(page, tmp_path, monkeypatch):
    language, name, code = SOURCES[page]
    if name.endswith(".sh"):
        skip_scripts(monkeypatch)
    text = text_of(page)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1], encoding="utf-8")
    [command] = [words for words in command_lines(text) if words[:2] == ["pretrain", "migrate"]]
    with pytest.raises(SystemExit) as ended:
        main(command[1:])
    assert ended.value.code == code
    written = (tmp_path / "recipe.yml").read_text(encoding="utf-8")
    for setting, shown in rows(text):
        assert_is_written(written, setting.strip("`"), shown.strip("`"))


def assert_is_written(written, setting, shown):
    """The recipe has the key with the value that is shown, and its comment names the setting."""
    path, _, value = shown.partition(": ")
    found = yaml.safe_load(written)
    for key in path.split("."):
        found = found[key]
    assert found == yaml.safe_load(value), shown
    line = next(line for line in written.splitlines() if line.strip().startswith(path.rpartition(".")[2] + ": "))
    name = re.match(r'"?([\w.-]+)', setting)[1]
    assert name in line, (setting, line)


def test_the_keys_that_stand_for_torchtitans_make_a_recipe(monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = dict(re.findall(r"`(\w+\.\w+): ([^`]+)`", " ".join(ours for _, ours in rows(text_of("torchtitan")))))
    recipe = load_recipe("recipes/llama3-8b.yml", [f"{path}={value}" for path, value in shown.items()])
    assert len(shown) > 15
    for path, value in shown.items():
        section, _, key = path.partition(".")
        assert getattr(getattr(recipe, section), key) == yaml.safe_load(value), path
