"""Translation of a DeepSpeed file into keys of a recipe, while it is collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pretrain.recipe.deepspeed.json_file import JsonFile, written
from pretrain.recipe.section import shown

if TYPE_CHECKING:
    from pretrain.recipe.recipe import AccumulationSteps

GivenKind = Literal["is", "is not", "by default"]
Kind = Literal["wrong", "absent", "removed", "notice", "by default", "settled", "rounded", "not given"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Statement of a file about one key of the recipe."""

    json_path: str
    path: str
    value: Any  # None: the recipe may not give it
    kind: GivenKind = "is"  # the recipe may override a default
    unless: tuple[str, ...] = ()  # keys of the recipe with which a default would have no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRemark:
    """Statement about a key of the file that gives no key of the recipe, or is more than it.

    "wrong" is a mistake; "absent" a key that a recipe does not have, "removed" one that DeepSpeed no longer has;
    "notice" is for the user, and "by default" too, of what comes with a key; "settled" matches fixed behaviour;
    "rounded" is a whole number that was written as 2e8 or 1.0; "not given" is null or "auto".
    """

    json_path: str
    kind: Kind
    text: str  # a sentence; of the last three kinds the value


@dataclass(slots=True)
class Translation:
    """Keys of a recipe that a DeepSpeed file gives, with problems and notices."""

    file: JsonFile
    given: list[Given] = field(default_factory=list)  # in the order of the file, defaults last
    remarks: list[KeyRemark] = field(default_factory=list)
    accumulation_steps: AccumulationSteps | None = None
    merged: set[str] = field(default_factory=set)  # keys of the recipe that the file gave, and not the recipe itself

    @property
    def problems(self) -> list[str]:
        """Return lines of an error."""
        return [
            f"{self.file.place(remark.json_path)}: {remark.text}{' Delete it.' * (remark.kind != 'wrong')}"
            for remark in self.of("wrong", "absent", "removed")
        ]

    @property
    def notices(self) -> list[str]:
        """Return lines that the user is shown: one for all keys that are settled, one for all that are rounded."""
        notices = self._lines("notice")
        summaries = {"settled": "these match pretrain's fixed behaviour", "rounded": "these were read as whole numbers"}
        for kind, words in summaries.items():
            remarks = [f"{remark.json_path}: {remark.text}" for remark in self.remarks if remark.kind == kind]
            if remarks:
                notices.append(f"{self.file.name}: {words}: {', '.join(remarks)}.")
        return notices + self._lines("by default")

    def of(self, *kinds: Kind) -> list[KeyRemark]:
        """Return the remarks of some kinds."""
        return [remark for remark in self.remarks if remark.kind in kinds]

    def give(self, json_path: str, path: str, value: Any, kind: GivenKind = "is", unless: tuple[str, ...] = ()) -> None:
        """Set a key of the recipe."""
        self.given.append(Given(json_path=json_path, path=path, value=value, kind=kind, unless=unless))

    def remark(self, json_path: str, kind: Kind, text: str) -> None:
        """Add a remark."""
        self.remarks.append(KeyRemark(json_path=json_path, kind=kind, text=text))

    def refuse(self, json_path: str, text: str) -> None:
        """Add a problem with a key."""
        self.remark(json_path, "wrong", text)

    def notice(self, json_path: str, text: str) -> None:
        """Add a notice about the meaning of a key."""
        self.remark(json_path, "notice", text)

    def settle(self, json_path: str, value: Any) -> None:
        """Note a key that matches fixed behaviour."""
        self.remark(json_path, "settled", written(value))

    def is_switch(self, json_path: str, value: Any) -> bool:
        """Return whether the value is true or false; a problem if not."""
        if not isinstance(value, bool):
            self.refuse(json_path, f"{shown(value)} is not true or false.")
        return isinstance(value, bool)

    def _lines(self, kind: Kind) -> list[str]:
        return [f"{self.file.place(remark.json_path)}: {remark.text}" for remark in self.of(kind)]


def no_translation() -> Translation:
    """Return that of a recipe without a DeepSpeed file."""
    return Translation(JsonFile("", {}, {}))
