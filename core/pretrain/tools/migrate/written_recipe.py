"""A recipe as text: in sections, with a comment at each key that names where its value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Tree = dict[str, Any]


def written_recipe(data: Tree, comments: Mapping[str, str], head: Sequence[str]) -> str:
    """Return the text of a recipe.

    Args:
        data: nested sections.
        comments: by "section.key", for keys and for sections.
        head: lines above the first section.
    """
    lines = [f"# {line}".rstrip() for line in head]
    for number, (section, inner) in enumerate(data.items()):
        lines += [""] * bool(number) + list(_written(section, inner, section, comments, 0))
    return "\n".join(lines) + "\n"


def _written(key: str, value: Any, path: str, comments: Mapping[str, str], depth: int) -> Iterator[str]:
    indent = "  " * depth
    comment = f" # {comments[path]}" if comments.get(path) else ""
    if isinstance(value, dict):
        yield f"{indent}{key}:{comment}"
        for name, inner in value.items():
            yield from _written(name, inner, f"{path}.{name}", comments, depth + 1)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        yield f"{indent}{key}:{comment}"
        for part in value:
            yield f"{indent}  - {_flow(part)}"
    else:
        yield f"{indent}{key}: {_flow(value)}{comment}"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").removesuffix("\n")
