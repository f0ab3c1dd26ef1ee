"""Where each value of a recipe comes from: a line of a file, --set, a DeepSpeed file, other keys, or a default."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.effect import RULES
from pretrain.recipe.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from pretrain.recipe.document import Document
    from pretrain.recipe.recipe import Recipe


class Kind(Enum):
    """How a key has come to its value."""

    GIVEN = "given"
    DERIVED = "derived"  # from the values of other keys
    DEFAULT = "default"
    UNSET = "unset"  # without a value, by default
    IDLE = "idle"  # whatever its value is, nothing reads it in this recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyOrigin:
    """Value of one key, and where it comes from."""

    path: str  # "section.key"
    value: Any  # as JSON has it; None without one
    kind: Kind
    origin: str  # "recipes/gpt3.yml:14", "--set model.num_layers=2", "ds.json:4: fp16.enabled", "derived from ..."


def origins_of(recipe: Recipe, document: Document) -> list[KeyOrigin]:
    """Return the origin of each key, in the order of the sections; `load_with_document` returns what is given here."""
    return list(_of_section(recipe, recipe.model_dump(mode="json"), document, _needs(recipe), ""))


def left_out(document: Document) -> list[tuple[str, str, str]]:
    """Return each key that was given and is not used, its place, and the reason: a later file or --set."""
    return [
        (path, document.place(tuple(path.split("."))), reason)
        for path, reason in document.left_out.items()
        if document.value(path) is None
    ]


def _needs(recipe: Recipe) -> dict[str, str]:
    """Return what the keys without effect need."""
    return {path: rule.needs for rule in RULES if not rule.holds(recipe) for path in rule.keys}


def _of_section(
    section: Section, values: dict[str, Any], document: Document, needs: dict[str, str], prefix: str
) -> Iterator[KeyOrigin]:
    for name, field in type(section).model_fields.items():
        path, value, inner = f"{prefix}{name}", values[name], getattr(section, name)
        if path in needs:
            yield KeyOrigin(path=path, value=value, kind=Kind.IDLE, origin=f"no effect; it needs {needs[path]}")
        elif isinstance(inner, Section):
            yield from _of_section(inner, value, document, needs, f"{path}.")
        elif name in section.model_fields_set:
            place = document.place(tuple(path.split(".")))
            yield KeyOrigin(path=path, value=value, kind=Kind.GIVEN, origin=place)
        elif read := _read_by_default(field, values):
            origin = f"derived from {', '.join(read)}"
            yield KeyOrigin(path=path, value=value, kind=Kind.DERIVED, origin=origin)
        else:
            kind = Kind.UNSET if value is None else Kind.DEFAULT
            yield KeyOrigin(path=path, value=value, kind=kind, origin="default")


class _Values(dict[str, Any]):
    """Values of a section, which notes the keys that are read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        self.read[key] = None
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self.get(key)


def _read_by_default(field: FieldInfo, values: dict[str, Any]) -> list[str]:
    """Return the keys of the section from which the default of a key is computed."""
    if field.default_factory is None or not field.default_factory_takes_validated_data:
        return []
    noting = _Values(values)
    field.get_default(call_default_factory=True, validated_data=noting)
    return list(noting.read)
