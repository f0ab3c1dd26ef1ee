"""docs/recipes.md and a JSON Schema for editors, generated from the sections of a recipe.

Run `.venv/bin/python docs/generate/recipes_page.py` after changing a key.
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.effect import RULES
from pretrain.recipe.document import FORMAT
from pretrain.recipe.recipe import Recipe, description, inner_section, walk
from pretrain.recipe.section import Section
from pretrain.recipe.sections.model import CONSEQUENCES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

DOCS = Path(__file__).parents[1]
PAGE = "recipes.md"
SCHEMA = "recipe.schema.json"
KEYS = "../core/pretrain/cli/recipe_keys.txt"

_INTRODUCTION = """\
# Recipes

A recipe is one YAML file that describes one training run; it names no hardware. `pretrain RECIPE` trains it. This page
is generated from the schema (`python docs/generate/recipes_page.py`), and so is
[recipe.schema.json](recipe.schema.json), with which an editor completes and checks recipes: the first line of
`recipes/quickstart.yml` shows how.

- `--set section.key=value` changes a key for one run; the value is YAML or JSON. `--set 'section={key: value}'`
  replaces a whole section, `--set section.key=null` unsets a key. null in a file counts as not given.
- An unknown key is an error, and so is a key that would have no effect. A key of the file that an override leaves
  without effect goes silently: `--set precision.dtype=fp32` drops the file's loss scale. An override of one of two
  alternatives (`train_iters` and `train_samples`, `path` and `blend`, ...) replaces the file's other one.
- `engine.deepspeed_config: ds_config.json` takes over what a DeepSpeed file says, as keys of the recipe. A value that
  the recipe gives otherwise is an error, and so is a key that has no counterpart; `"auto"` counts as not given. A
  deprecated key is understood, one that nothing would read is left out, and a notice says how.
- `extends: base.yml` lays a file over another, which may extend a third. The path is relative to the file that says it;
  all other paths, those inside the base too, stay relative to the working directory. Sections are merged key by key; a
  list or any other value replaces the base's, `key: null` unsets it; an empty section is an error. What
  holds for overrides holds here: one of two alternatives replaces the base's other, and keys of the base that are left
  without effect go silently.
- `pretrain explain RECIPE --values` shows where each value comes from: the line of a file, a `--set`, a key of a
  DeepSpeed file, other keys, or the default; `pretrain explain RECIPE optimizer train.seed` shows sections and keys.
- `version: 1` names this format, which a file without it has too. It grows when a key changes its meaning; a
  newer file than this pretrain reads is refused.
- Flags and keys of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX are no keys, but the error says which key each is here.
- Numbers may be written 1e-4, 2.0e8 or 1_000. Paths are relative to the working directory.
- The complete recipe, every default written out, is saved as `recipe.yml` in the run directory; running that again is
  the same run. It extends nothing.
- `pretrain completion bash` (zsh, fish) prints a script with which the shell completes commands, options, recipes and
  the keys of `--set`.
"""


def page() -> str:
    """Return docs/recipes.md: one table for each section."""
    parts = [_INTRODUCTION]
    for name, field in Recipe.model_fields.items():
        section = inner_section(field)
        if section is not None:
            parts += [f"## {name}\n\n{_text(section)}\n", _table(section, f"{name}.")]
        if name == "model":
            parts.append(_consequences())
    return "\n".join(parts)


def _consequences() -> str:
    """Return what a checkpoint of the model fits."""
    free = ", ".join(f"`{name}`" for name, key in CONSEQUENCES.items() if not key.is_structure)
    return f"A checkpoint fits the values it was trained with; these may change: {free}.\n"


def schema() -> str:
    """Return the JSON Schema of a recipe."""
    made = Recipe.model_json_schema()
    for section in (made, *made["$defs"].values()):
        for key in section["properties"].values():
            if "description" in key:
                key["description"] = " ".join(key["description"].split())
    made["properties"] = _KEYS_OF_FILES | made["properties"]
    made["$defs"]["LoggingSection"]["properties"] |= _OLD_KEYS_OF_LOGGING
    _require_unless_extended(made)
    return json.dumps(made, indent=2, allow_nan=False) + "\n"


def keys() -> str:
    """Return what a shell completes in --set: each section and each key that has a name there, with its description."""
    lines, lists = [], set[str]()
    for path, field in walk(Recipe):
        if path.rpartition(".")[0] in lists:
            continue
        if "list" in _values(field):
            lists.add(path)
        end = "=" if inner_section(field) is None or path in lists else "."
        lines.append(f"{path}{end}\t{description(field)}\n")
    return "".join(lines)


_KEYS_OF_FILES = {
    "version": {"enum": list(range(1, FORMAT + 1)), "description": "Format of the recipe; by default 1."},
    "extends": {"type": "string", "minLength": 1, "description": "Recipe over which this one is laid."},
}
"""Keys at the top of a file that are not of the run."""

_OLD_KEYS_OF_LOGGING = {
    "tensorboard": {
        "type": "boolean",
        "deprecated": True,
        "description": "The key of before: adds tensorboard to loggers, or removes it.",
    }
}


def _require_unless_extended(made: dict[str, Any]) -> None:
    """Let a file that extends another leave out what the other may give."""
    of_sections = {}
    for name, key in made["properties"].items():
        section = made["$defs"].get(key.get("$ref", "").rpartition("/")[2], {})
        if "required" in section:
            of_sections[name] = {"required": section.pop("required")}
    complete = {"required": made.pop("required"), "properties": of_sections}
    made |= {"if": {"not": {"required": ["extends"]}}, "then": complete}


def _text(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(section: type[Section], prefix: str) -> str:
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    lines += [_row(path, field, prefix) for path, field in walk(section, prefix)]
    return "\n".join(lines) + "\n"


def _row(path: str, field: FieldInfo, prefix: str) -> str:
    needs = [f" Needs {rule.needs}." for rule in RULES if path in rule.keys]
    values = _values(field).replace("|", "\\|")
    return f"| `{path.removeprefix(prefix)}` | {values} | {_default(field)} | {description(field)}{''.join(needs)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default_factory is not None or field.default is None or isinstance(field.default, Section):
        return ""
    return f"`{json.dumps(field.default)}`" if not isinstance(field.default, str) else f"`{field.default}`"


def _values(field: FieldInfo) -> str:
    return " or ".join(dict.fromkeys(_options(field.annotation)))


def _options(annotation: Any) -> Iterator[str]:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    elif origin is tuple:
        yield "list"
    elif origin in {typing.Union, types.UnionType, typing.Annotated}:
        for option in typing.get_args(annotation):
            yield from _options(option)
    elif isinstance(annotation, type) and annotation is not type(None):
        names = {int: "integer", float: "number", bool: "true, false", str: "text"}
        yield "keys below" if issubclass(annotation, Section) else names[annotation]


if __name__ == "__main__":
    (DOCS / PAGE).write_text(page(), encoding="utf-8")
    (DOCS / SCHEMA).write_text(schema(), encoding="utf-8")
    (DOCS / KEYS).write_text(keys(), encoding="utf-8")
