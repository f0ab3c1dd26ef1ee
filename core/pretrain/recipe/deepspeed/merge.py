"""Merge a DeepSpeed file into the document of the recipe that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.json_file import read_inline, read_json
from pretrain.recipe.deepspeed.translate import translate
from pretrain.recipe.deepspeed.translation import written
from pretrain.recipe.section import as_number

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Given, Translation
    from pretrain.recipe.document import Document
    from pretrain.recipe.recipe import AccumulationSteps

_CONFIG = "engine.deepspeed_config"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Result of merging a DeepSpeed file, beside the keys in the document.

    Attributes:
        name: the file; empty if there is none.
        problems: lines of an error.
        notices: lines for the user.
        accumulation_steps: the micro-batches per step that the layout must have.
        given: the keys of the recipe that the file has given, and not the recipe itself.
    """

    name: str = ""
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    accumulation_steps: AccumulationSteps | None = None
    given: frozenset[str] = frozenset()


def merge_deepspeed(document: Document) -> TakenOver:
    """Replace a DeepSpeed file's name, or its content, in the document by the keys that it is translated to.

    Without engine.name: deepspeed the name stays where it is, as a key without effect.

    Raises:
        RecipeError: the file cannot be read.
    """
    named = document.value(_CONFIG)
    if not isinstance(named, str | dict) or not named or document.value("engine.name") != "deepspeed":
        return TakenOver()
    keys = tuple(_CONFIG.split("."))
    if isinstance(named, str):
        file = read_json(named, f"{document.place(keys)}: {_CONFIG}")
    else:
        file = read_inline(named, document, keys)
    translation = translate(file)
    document.remove(_CONFIG)
    for given in sorted(translation.given, key=_rank):
        (_merge, _exclude, _fill_in)[_rank(given)](document, translation, given)
    return TakenOver(
        file.name,
        tuple(translation.problems),
        tuple(translation.notices),
        translation.accumulation_steps,
        frozenset(given.path for given in translation.given if _gave(document, translation, given)),
    )


def _gave(document: Document, translation: Translation, given: Given) -> bool:
    return document.places.get(tuple(given.path.split("."))) == translation.file.place(given.json_path)


def _rank(given: Given) -> int:
    """Return the order of merging: values first, since exclusions and defaults depend on them."""
    if given.kind == "by default":
        return 2
    return 1 if given.kind == "is not" or given.value is None else 0


def _merge(document: Document, translation: Translation, given: Given) -> None:
    present = document.value(given.path)
    if present is None:
        document.give(given.path, given.value, translation.file.place(given.json_path))
    elif not _same(present, given.value):
        _contradict(document, translation, given)


def _exclude(document: Document, translation: Translation, given: Given) -> None:
    present = document.value(given.path)
    if present is not None and (given.value is None or _same(present, given.value)):
        _contradict(document, translation, given)


def _contradict(document: Document, translation: Translation, given: Given) -> None:
    key = given.path if given.value is None else f"{given.path}: {written(given.value)}"
    means = key if given.kind == "is" and given.value is not None else f"no {key}"
    raw, present = written(translation.file.values[given.json_path]), written(document.value(given.path))
    place = document.place(tuple(given.path.split(".")))
    text = f"{raw} means {means}, but {place} gives {present}. Change one, or delete it here."
    translation.refuse(given.json_path, text)


def _fill_in(document: Document, translation: Translation, given: Given) -> None:
    if all(document.value(path) is None for path in (given.path, *given.unless)):
        document.give(given.path, given.value, translation.file.place(given.json_path))
        text = f"{given.path}: {written(given.value)} comes with it, which is DeepSpeed's default."
        translation.remark(given.json_path, "by default", text)


def _same(one: Any, other: Any) -> bool:
    """Compare as a recipe reads values: 2e8 is 200000000, but 1 is not true."""
    one, other = as_number(one), as_number(other)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
