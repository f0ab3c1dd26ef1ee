"""Problems of a recipe, and their messages."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from pretrain.errors import did_you_mean
from pretrain.recipe.deepspeed.key_tables import of_deepspeed
from pretrain.recipe.recipe import keys_of_recipe
from pretrain.recipe.section import as_written, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from pretrain.recipe.deepspeed.translation import Translation
    from pretrain.recipe.document import Document


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a recipe, shown as `file:line: path: text`."""

    path: str  # "section.key"
    text: str  # what was given, what is allowed, what to do
    switched_off_by: tuple[str, ...] = ()  # for a key without effect, the keys whose values decide that


_MOST = 8
_IDLE = ": no effect here; "

_ABSENT = {
    "extends": "only a recipe's file can extend another, by `extends: base.yml` at its top; --set cannot.",
    "moe": "experts are keys of section model, num_experts and those that begin with moe_; DeepSpeed's are not here.",
    "wandb": "loggers are keys of section logging: loggers: [wandb], and those that begin with wandb_.",
    "comet": "loggers are keys of section logging: loggers: [comet], and those that begin with comet_.",
}
"""Sections and keys that stand at the top of a recipe of another program, or in a file alone."""

_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a section with keys",
    "tuple_type": "a list",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "one to three numbers such as 949,50,1",
}


class ForeignNames(Protocol):
    """The tool that knows other programs' keys and flags, for an error: each answer is "" for an unknown one."""

    def key_of_recipe(self, path: str, given: Any) -> str: ...  # noqa: D102
    def flag_of_run(self, flag: str, values: Sequence[str] = ()) -> str: ...  # noqa: D102
    def flag_of_build(self, flag: str) -> str: ...  # noqa: D102


def foreign_names() -> ForeignNames:
    """Import the tool."""
    return cast("ForeignNames", import_module("pretrain.tools.migrate.hints"))


def describe(document: Document, problems: Iterable[Problem], taken: Translation) -> str:
    """Return one line for each problem, with its place; at most eight. Those of a DeepSpeed file come first."""
    lines = list(taken.problems)
    for problem in problems:
        place = " and ".join([document.place(tuple(problem.path.split("."))), *_other_overrides(document, problem)])
        lines.append(f"{place}: {problem.path}: {problem.text}")
    name = taken.file.name
    idle = name and any(line.startswith(f"{name}:") and _IDLE in line for line in lines)
    if len(lines) > _MOST:
        lines[_MOST:] = [f"... and {len(lines) - _MOST} more."]
    if idle:
        lines.append(f"Delete the keys without effect from {name}.")
    return "\n".join(lines)


def _other_overrides(document: Document, problem: Problem) -> list[str]:
    """Return the overrides of other keys whose values the text names, if the problem's own key is the file's."""
    if problem.path in document.overridden:
        return []
    named = [key for key in sorted(document.overridden) if re.search(rf"\b{re.escape(key)} [\d-]", problem.text)]
    return [document.place(tuple(key.split("."))) for key in named]


def problems_in(error: ValidationError) -> list[Problem]:
    """Translate a pydantic error into problems of a recipe."""
    # Unknown keys first: a misspelt one explains why the right one is missing.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    problems = []
    for detail in details:
        if detail["type"] != "default_factory_not_called":
            path = ".".join(map(str, detail["loc"]))
            problems.append(Problem(path, _text(path, detail)))
    return problems


def _text(path: str, detail: ErrorDetails) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(path, given)
    if kind == "missing":
        return f"required. {keys_of_recipe()[_without_index(path)]}"
    if kind == "literal_error":
        return f"{as_written(given)} is not one of {context['expected'].replace(chr(39), '')}."
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{shown(given)} must be {words} {context[bound]:g}."
    if kind == "value_error":
        return str(context["error"])
    return f"{as_written(given)} is not {_TYPES[kind]}." if kind in _TYPES else f"{shown(given)}: {detail['msg']}."


def _unknown(path: str, given: Any) -> str:
    if path in _ABSENT:
        return f"unknown key: {_ABSENT[path]}"
    return f"unknown key.{of_deepspeed(path) or foreign_names().key_of_recipe(path, given) or _nearest(path)}"


def _without_index(path: str) -> str:
    """data.blend.0.weight -> data.blend.weight."""
    return ".".join(name for name in path.split(".") if not name.isdigit())


def _nearest(path: str) -> str:
    """Return the keys that were probably meant: a similar one of the section, the same word in another section."""
    known = keys_of_recipe()
    section, _, key = _without_index(path).rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    meant = [siblings[near] for near in difflib.get_close_matches(key, siblings, n=1)]
    meant += [other for other in known if other.rpartition(".")[2] == key and other not in meant][:1]
    if meant or section in known:
        return " Did you mean " + " or ".join(f"'{other}'" for other in meant) + "?" if meant else ""
    return did_you_mean(path, (other for other in known if ("." in other) == ("." in path)))
