"""Outcomes of keys of a DeepSpeed file that become no key of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meanings.meaning import NotSupported
from pretrain.tools.migrate.meanings.neox.deepspeed_objects import OBJECTS
from pretrain.tools.migrate.outcome import Outcome
from pretrain.tools.migrate.values.megatron.deepspeed.deepspeed_engine import place_in

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Remark, Translation
    from pretrain.tools.migrate.outcome import Fate


def outcomes_of_remarks(translation: Translation) -> dict[str, Outcome]:
    """Return an outcome for each key that a translation remarks on, by its path.

    Raises:
        MigrateError: a key is unknown, or its value is out of range.
    """
    if translation.of("wrong"):
        lines = [f"{translation.file.place(remark.json_path)}: {remark.text}" for remark in translation.of("wrong")]
        raise MigrateError("\n".join(lines))
    return {remark.json_path: _outcome(translation.file, remark) for remark in translation.remarks}


def _outcome(file: JsonFile, remark: Remark) -> Outcome:
    fate, text = _fate(file, remark)
    return Outcome(fate, remark.json_path, text, place_in(file, remark.json_path))


def _fate(file: JsonFile, remark: Remark) -> tuple[Fate, str]:
    match remark.kind:
        case "absent" | "removed" if file.values.get(f"{remark.json_path}.enabled") is False:
            return "no effect", "it is not enabled"
        case "absent" | "removed":
            return "not supported", _change(remark)
        case "settled":
            return "no effect", f"{remark.text} is what always holds here"
        case "rounded":
            return "no effect", f"read as {remark.text}"
        case "not given":
            return "no effect", f"{remark.text.replace('None', 'null')} counts as not given"
    return "no effect", remark.text.rstrip(".")


def _change(remark: Remark) -> str:
    """Return what changes for the user, as for the same key in a file of GPT-NeoX."""
    path = remark.json_path
    found = OBJECTS.get(f"{path}.enabled") or OBJECTS.get(path)
    return found.change if isinstance(found, NotSupported) else remark.text.rstrip(".")
