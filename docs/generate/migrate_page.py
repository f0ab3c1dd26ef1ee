"""The tables of docs/migrate.md, generated from the meanings of the dialects.

Run `.venv/bin/python docs/generate/migrate_page.py` after changing one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported, read_meanings
from pretrain.tools.migrate.megatron.meanings import BUILD_MEANINGS, LAUNCHERS, MEANINGS, MEANINGS_OF
from pretrain.tools.migrate.neox.meanings import MEANINGS as NEOX
from pretrain.tools.migrate.programs import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pretrain.tools.migrate.meaning import Meaning

PAGE = "migrate.md"
DOCS = Path(__file__).parents[1]
_MINDSPEED = read_meanings("mindspeed")
_MARK = "<!-- Generated from here on: python docs/generate/migrate_page.py -->\n"

_TITLES: tuple[tuple[str, Callable[[Meaning], bool]], ...] = (
    ("Carried over", lambda meaning: isinstance(meaning, Mapped)),
    ("Replaced", lambda meaning: _reason(meaning) in {"replaced", "option"}),
    ("No effect here", lambda meaning: _reason(meaning) == "no effect"),
    ("Not read by the program's own training", lambda meaning: _reason(meaning) == "not read"),
    ("Not supported", lambda meaning: isinstance(meaning, NotSupported) and not meaning.other_model),
    (
        "Refused without `--accept`: another model",
        lambda meaning: isinstance(meaning, NotSupported) and meaning.other_model,
    ),
)


def _reason(meaning: Meaning) -> str:
    return meaning.reason if isinstance(meaning, NotNeeded) else ""


def page(present: str) -> str:
    """Return docs/migrate.md: what is written by hand in the present one, and new tables."""
    return present.partition(_MARK)[0] + _MARK + "\n" + "\n".join(_tables())


def _tables() -> Iterator[str]:
    yield "## Versions\n\n| `--from` | version |\n| --- | --- |"
    yield from (f"| `{known.name}` | {known.title} |" for known in programs().values())
    flags = {name: _spelling(name, "megatron") for name in MEANINGS}
    yield from _dialect("Flags of Megatron-LM, both Megatron-DeepSpeeds and MindSpeed-LLM", MEANINGS, flags)
    for program, own in MEANINGS_OF.items():
        yield from _dialect(f"Flags with another meaning in {program}", own, flags)
    yield from _dialect("Settings of GPT-NeoX", NEOX, {name: _spelling(name, "neox") for name in NEOX})
    yield from _dialect("Options of launchers", LAUNCHERS, {name: f"--{name}" for name in LAUNCHERS})
    yield from _dialect("Flags of preprocess_data.py", BUILD_MEANINGS, {name: _dashed(name) for name in BUILD_MEANINGS})


def _spelling(name: str, dialect: str) -> str:
    """Return a setting as its newest program spells it."""
    found = [known.flags[name] for known in programs().values() if known.dialect == dialect and name in known.flags]
    if not found and (name in _MINDSPEED or "*" in name):
        return _dashed(name)
    return " ".join(found[-1].spellings) if found else name


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _dialect(title: str, meanings: Mapping[str, Meaning], spelled: Mapping[str, str]) -> Iterator[str]:
    yield f"\n## {title}"
    for group, is_of_group in _TITLES:
        rows: dict[str, list[str]] = {}
        for name, meaning in meanings.items():
            if is_of_group(meaning):
                rows.setdefault(_text(meaning), []).append(f"`{spelled.get(name, name)}`")
        if rows:
            yield f"\n**{group}**\n\n| setting | here |\n| --- | --- |"
            yield from (f"| {', '.join(dict.fromkeys(names))} | {text} |" for text, names in rows.items())


def _text(meaning: Meaning) -> str:
    if isinstance(meaning, Mapped):
        values = ", ".join(f"{_value(theirs)}: {_value(ours)}" for theirs, ours in meaning.values.items())
        parts = (f"`{meaning.key}`", f"({values})" * bool(values), meaning.how, meaning.note)
        return "; ".join(part for part in (" ".join(filter(None, parts[:2])), *parts[2:]) if part).replace("|", "\\|")
    if isinstance(meaning, NotSupported):
        return meaning.change.replace("|", "\\|")
    return f"`{meaning.text}`" if meaning.reason == "option" else meaning.text.replace("|", "\\|")


def _value(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    written = DOCS / PAGE
    written.write_text(page(written.read_text(encoding="utf-8")), encoding="utf-8")
