"""Identity of a checkpoint: settings that must not change, and notices about those that have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.recipe.sections.model import ALWAYS, ANY, CONSEQUENCES
from pretrain.stores.local_copies import shown_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.data import BlendPart, DataSection
    from pretrain.recipe.sections.model import ModelSection

_LEAST = 1024  # rows beyond a tokenizer's tokens that need no explanation: Qwen 2 has 293, GPT-NeoX-20B 155
# Megatron-LM's --make-vocab-size-divisible-by, and the tensor-parallel ranks up to which it is multiplied
_MULTIPLE, _MOST_RANKS = 128, 64


def structure(model: ModelSection) -> dict[str, Any]:
    """Return the settings that the weights depend on, and what is computed with them, by keys of section `model`."""
    return {name: getattr(model, name) for name, key in CONSEQUENCES.items() if key.is_structure}


def is_padded(tokens: int, rows: int) -> bool:
    """Say whether an embedding may have so many rows for a tokenizer with so many tokens."""
    if not tokens <= rows < 2 * tokens:
        return False
    multiples = [_MULTIPLE * 2**power for power in range(_MOST_RANKS.bit_length())]
    return rows - tokens < _LEAST or any(rows == -(-tokens // each) * each for each in multiples)


# settings that the first checkpoints of this format lack, although they could differ
_NOTED_LATER = {f"model.{name}" for name, key in CONSEQUENCES.items() if key.before is ANY}
# what all models had that were saved without these settings
_BEFORE_THEY_EXISTED = {
    f"model.{name}": key.before for name, key in CONSEQUENCES.items() if key.before not in {ALWAYS, ANY}
}
_OF_THE_SCHEDULE = {"lr", "weight_decay"}  # keys of section `optimizer` whose saved values `saved_schedule` compares


def identity(recipe: Recipe, vocab_size: int) -> dict[str, Any]:
    """Return the model's structure, the optimizer's settings and the order of samples, as a checkpoint holds them."""
    return {
        "model": structure(recipe.model) | {"vocab_size": vocab_size},
        "dtype": recipe.precision.dtype,
        "settings": _settings(recipe),
        "samples": _samples(recipe),
    }


def require_same(
    recipe: Recipe,
    vocab_size: int,
    directory: Path,
    saved: Mapping[str, Any],
    *,
    weights_only: bool,
    fingerprint: str | None = None,
) -> None:
    """Check that a checkpoint is of this model and, unless only its weights are read, of this precision.

    A `fingerprint` is that of the tokenizer, which has to be the checkpoint's.
    """
    expected = {f"model.{name}": value for name, value in structure(recipe.model).items()}
    expected["model.vocab_size"] = vocab_size
    there = _BEFORE_THEY_EXISTED | {f"model.{name}": value for name, value in saved["model"].items()}
    if not weights_only:
        expected["precision.dtype"], there["precision.dtype"] = recipe.precision.dtype, saved["dtype"]
    rows = saved["model"].get("vocabulary_rows")
    if there.get("model.vocab_size") is None and rows is not None and is_padded(vocab_size, rows):
        there["model.vocab_size"] = vocab_size  # converted weights, of which only the padded vocabulary is known
    known = [name for name in expected if name in there or name not in _NOTED_LATER]
    differing = [name for name in known if expected[name] != there.get(name)]
    if differing == ["model.vocab_size"] and (told := there.get("model.vocab_size")) is not None:
        sizes = f"has {vocab_size:,} tokens, the one that {shown_place(directory)} was trained with {told:,}"
        raise _other_tokenizer(recipe.tokenizer.files, sizes, _RESTORE)
    if differing:
        pairs = ", ".join(f"{name} {there.get(name)} (recipe: {expected[name]})" for name in differing[:4])
        msg = f"{shown_place(directory)} is of another run: {pairs}.\nChange the recipe, or choose another checkpoint."
        raise CheckpointError(msg)
    if fingerprint is not None:
        told = saved["progress"].get("tokenizer")
        require_same_tokenizer(recipe.tokenizer.files, fingerprint, told, shown_place(directory))


_RESTORE = (
    "Restore that file, or name it in section tokenizer. A new run takes the weights with another one by "
    "checkpoint.load and checkpoint.finetune."
)


def require_same_tokenizer(
    files: Sequence[object], fingerprint: str, saved: str | None, place: str, remedy: str = _RESTORE
) -> None:
    """Check that a tokenizer, of these files, is the one whose fingerprint a checkpoint tells; older ones do not."""
    if saved not in (None, fingerprint):
        raise _other_tokenizer(files, f"is not the tokenizer that {place} was trained with", remedy)


def _other_tokenizer(files: Sequence[object], what: str, remedy: str) -> CheckpointError:
    named = " with ".join(map(str, files)) or "the tokenizer of bytes"
    replaced = ": was the file replaced?" if files else "."
    return CheckpointError(f"{named} {what}{replaced}\n{remedy}")


def differences(recipe: Recipe, saved: Mapping[str, Any]) -> list[str]:
    """Return a notice for each setting that differs from the checkpoint's; the recipe's value is used."""
    # the defaults of checkpoints without these keys
    before = {"data.index": "megatron", "data.split_by": "documents"} | saved["samples"]
    settings = saved.get("settings", {})
    notices = [
        f"{name}: {value} from here on; it was {settings[name]}"
        for name, value in _settings(recipe).items()
        if name in settings and settings[name] != value
    ]
    notices += [
        f"{name}: {value}, the checkpoint's {before[name]}: samples are read in another order, some of them twice"
        for name, value in _samples(recipe).items()
        if None not in (value, before.get(name)) and value != before[name]
    ]
    return notices


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the training, not of the model; the schedule has its own values in the checkpoint."""
    optimizer = recipe.optimizer.model_dump(exclude=_OF_THE_SCHEDULE)
    return {
        **{f"optimizer.{name}": value for name, value in optimizer.items()},
        "data.eod_mask_loss": recipe.data.eod_mask_loss,
        **_held_out(recipe.data),
        "train.global_batch_size": recipe.train.global_batch_size,
        "model.hidden_dropout": recipe.model.hidden_dropout,
        "model.attention_dropout": recipe.model.attention_dropout,
    }


def _held_out(data: DataSection) -> dict[str, Any]:
    """Return the files of validation and test, which have no part in the order of training's samples."""
    if data.own_files is None:
        return {}
    _, valid, test = data.own_files
    return {"data.valid_data_path": _blend(valid), "data.test_data_path": _blend(test)}


def _blend(parts: Sequence[BlendPart]) -> list[list[Any]]:
    return [[part.path, part.weight] for part in parts]


def _samples(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that the order of samples depends on; data.index: native stores its own, without the data."""
    data = recipe.data
    train = data.common_files if data.own_files is None else data.own_files[0]
    paths = data.path or _blend(train)
    return {
        "train.seed": recipe.train.seed,
        "data.index": data.index,
        "data": paths if data.index == "megatron" else None,
        "data.split": data.split if data.own_files is None else "files of their own",
        "data.split_by": data.split_by,
        "model.seq_length": recipe.model.seq_length,
    }
