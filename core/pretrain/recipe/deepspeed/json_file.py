"""A DeepSpeed JSON file, or the same inside a recipe, as flat keys with their line numbers.

The YAML reader cannot serve: it refuses tabs, accepts trailing commas, and reads 1e-4 as text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.errors import RecipeError, did_you_mean
from pretrain.recipe.section import as_number, local_path, shown

if TYPE_CHECKING:
    from pretrain.recipe.document import Document


AUTO = "auto"
"""Value that DeepSpeed's caller replaces; it counts as not given."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')


@dataclass(frozen=True, slots=True)
class JsonFile:
    """The keys of a DeepSpeed file."""

    name: str  # as it was given
    values: dict[str, Any]  # by path, "zero_optimization.stage"; only an empty object is a value itself
    places: dict[str, str]  # "ds_config.json:4" by path, of objects too

    def has(self, path: str) -> bool:
        """Return whether the file gives this key; null and "auto" are left to others."""
        return self.values.get(path) not in (None, AUTO)

    def place(self, path: str) -> str:
        """Return "ds_config.json:4: zero_optimization.stage"."""
        return f"{self.places.get(path, self.name)}: {path}"


def read_json(name: str, named_by: str) -> JsonFile:
    """Read a file, whose path is relative to the working directory; `named_by` is where the recipe names it."""
    try:
        name = str(local_path(name))
    except ValueError as error:
        msg = f"{named_by}: {error}"
        raise RecipeError(msg) from error
    return parse_json(_read_text(Path(name), named_by), name, named_by)


def parse_json(text: str, name: str, named_by: str) -> JsonFile:
    """Read the text of a file, an object with unique keys; `named_by` may be empty."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        msg = (
            f"{name}:{error.lineno}: this is not JSON: {error.msg}.\nComments and trailing commas are not JSON either."
        )
        raise RecipeError(msg) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        msg = f"{name}: this is not JSON that can be read: {error}"
        raise RecipeError(msg) from error
    if not isinstance(data, dict):
        named = f"\n{named_by} names this file." if named_by else ""
        msg = f"{name}: a DeepSpeed file must hold one object, {{...}}.{named}"
        raise RecipeError(msg)
    places = {path: f"{name}:{line}" for path, line in _lines(name, text).items()}
    return JsonFile(name, _flat(data), places)


def read_inline(data: dict[str, Any], document: Document, keys: tuple[str, ...]) -> JsonFile:
    """Read the object that a recipe holds at `keys` instead of a file's name."""
    values = {path: as_number(value) for path, value in _flat(data).items()}
    name = document.place(keys)
    parts = [path.split(".") for path in values]
    paths = {".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}  # of objects too
    return JsonFile(name, values, {path: document.place((*keys, *path.split("."))) for path in paths})


def _read_text(path: Path, named_by: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.json")))
        msg = f"{named_by}: {path}: there is no such file.{near}\nThe path is relative to the working directory."
        raise RecipeError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        msg = f"{named_by}: {path}: this file cannot be read: {why}.\nGive the path of a DeepSpeed JSON file."
        raise RecipeError(msg) from error


def _part(key: str) -> str:
    """Return the key as a part of a path: one that holds a dot must not look like two, and every one can be printed."""
    return key if key.isprintable() and "." not in key else repr(key)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in data.items():
        path = prefix + _part(str(key))  # a key of YAML may be a number
        values |= _flat(value, f"{path}.") if isinstance(value, dict) and value else {path: value}
    return values


def _lines(name: str, text: str) -> dict[str, int]:
    """Return the line of each key of a text that is known to be JSON."""
    lines: dict[str, int] = {}
    around: list[str | int] = []  # for each open object its present key, for each open list its present index
    key_is_next = False
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "{[":
            around.append("" if sign == "{" else 0)
            key_is_next = sign == "{"
        elif sign in "}]":
            around.pop()
        elif sign == ",":
            inner = around[-1]
            key_is_next = isinstance(inner, str)
            if isinstance(inner, int):
                around[-1] = inner + 1
        elif key_is_next:
            key_is_next = False
            around[-1] = _part(json.loads(sign))
            path, line = ".".join(map(str, around)), text.count("\n", 0, token.start()) + 1
            if path in lines:
                msg = f"{name}:{line}: {path} is given twice, in line {lines[path]} too.\nRemove one of them."
                raise RecipeError(msg)
            lines[path] = line
    return lines


_LONGEST = 60  # characters of a text that is shown as it is


def written(value: Any) -> str:
    """Return a value as JSON and YAML write it, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1e4:
        return f"{value:g}"
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) < _LONGEST else shown(value)
