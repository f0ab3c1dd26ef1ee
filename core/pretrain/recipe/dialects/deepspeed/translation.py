"""Translation of a DeepSpeed file into keys of a recipe, while it is collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pretrain.recipe.shown import shown

if TYPE_CHECKING:
    from pretrain.recipe.dialects.deepspeed.file import JsonFile
    from pretrain.recipe.origin import AccumulationSteps

_LONG = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Statement of a file about one key of the recipe.

    Attributes:
        json_path: the key of the file.
        path: the key of the recipe.
        value: its value; None: the recipe may not give it.
        kind: "is" or "is not" this value, or "by default", which the recipe may override.
        unless: keys of the recipe with which a default would have no effect.
    """

    json_path: str
    path: str
    value: Any
    kind: Literal["is", "is not", "by default"] = "is"
    unless: tuple[str, ...] = ()


@dataclass(slots=True)
class Translation:
    """Keys of a recipe that a DeepSpeed file gives, with problems and notices.

    Attributes:
        file: the file.
        given: in the order of the file, defaults last.
        problems: lines of an error.
        notices: lines that the user is shown.
        settled: "key: value" for each key that matches fixed behaviour.
        rounded: "key: value" for each whole number that was written as 2e8 or 1.0.
        accumulation_steps: the micro-batches per step that the layout must have.
    """

    file: JsonFile
    given: list[Given] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    accumulation_steps: AccumulationSteps | None = None

    def give(self, json_path: str, path: str, value: Any) -> None:
        """Set a key of the recipe."""
        self.given.append(Given(json_path=json_path, path=path, value=value))

    def refuse(self, json_path: str, text: str) -> None:
        """Add a problem with a key."""
        self.problems.append(f"{self.file.place(json_path)}: {text}")

    def notice(self, json_path: str, text: str) -> None:
        """Add a notice about the meaning of a key."""
        self.notices.append(f"{self.file.place(json_path)}: {text}")

    def settle(self, json_path: str, value: Any) -> None:
        """Note a key that matches fixed behaviour."""
        self.settled.append(f"{json_path}: {written(value)}")

    def summarize(self) -> None:
        """Add one notice for all `settled` keys and one for all `rounded` ones."""
        if self.settled:
            self.notices.append(f"{self.file.name}: these match pretrain's fixed behaviour: {', '.join(self.settled)}.")
        if self.rounded:
            self.notices.append(f"{self.file.name}: these were read as whole numbers: {', '.join(self.rounded)}.")

    def is_switch(self, json_path: str, value: Any) -> bool:
        """Return whether the value is true or false; a problem if not."""
        if not isinstance(value, bool):
            self.refuse(json_path, f"{shown(value)} is not true or false.")
        return isinstance(value, bool)


def written(value: Any) -> str:
    """Return a value as JSON and YAML write it, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1e4:
        return f"{value:g}"
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) < _LONG else shown(value)
