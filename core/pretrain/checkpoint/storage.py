"""A checkpoint: megatron-core's sharded format, readable at any layout and by any engine.

common.pt holds values that are the same on all ranks; weights, optimizer and generator states are sharded. Reading runs
no code: `torch_file` reads common.pt, weights_only other objects, and the index is checked before torch reads it.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.common import TorchCommonLoadStrategy
from torch.distributed.checkpoint.api import CheckpointException

from pretrain.checkpoint import checksums, generators
from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.folder import WITHOUT_CHECKSUMS
from pretrain.checkpoint.identity import differences, require_same
from pretrain.checkpoint.saved_schedule import continue_schedule, restore_schedule
from pretrain.checkpoint.sharded_format import MAIN, PREFIX, common_of, is_weight, read_index, weight_names
from pretrain.checkpoint.shares import ReadOnce
from pretrain.checkpoint.snapshot import Snapshot, first_line, stays
from pretrain.checkpoint.starting_checkpoint import require_complete, require_format
from pretrain.collectives import first_problem, on_rank0, tree_of_world
from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from pretrain.checkpoint.contents import Saved

# errors of reading a damaged checkpoint
_FAULTS = (
    *(CheckpointingException, CheckpointException, OSError, RuntimeError, KeyError, ValueError, EOFError),
    pickle.UnpicklingError,
)
_SHOWN = 3  # names of weights in an error


def save(
    engine: Saved,
    directory: Path,
    progress: Mapping[str, Any],
    send: Callable[[Path], None] = stays,
) -> None:
    """Write the engine's state into an empty folder, and `send` each file when it is complete; all ranks together."""
    Snapshot.take(engine, directory, progress, copies=False, send=send).write()


def load(engine: Saved, directory: Path, *, weights_only: bool, fingerprint: str | None = None) -> Loaded:
    """Read the folder into the engine; DamageError: a file has changed; CheckpointError: it does not fit.

    Without the `fingerprint` of a tokenizer the caller compares that with the one of the progress.
    """
    common = opened(directory)
    is_bare = "counters" not in common  # converted from another program's
    require_same(
        engine.recipe,
        engine.vocab_size,
        directory,
        common,
        weights_only=weights_only or is_bare,
        fingerprint=fingerprint,
    )
    weights, states = on_rank0(partial(_names_in, directory))
    require_same_weights(engine, directory, weights)
    if not (weights_only or is_bare):
        _require_same_states(engine, directory, states)
    engine.state.load(partial(_read, directory), None if weights_only or is_bare else common["counters"])
    notices = [] if has_checksums(common) else [f"{directory} has no checksums yet: damage is not detected"]
    if weights_only:
        return Loaded(progress=common["progress"], notices=notices)
    if is_bare:
        notices.append("weights alone; the optimizer starts without state")
        notices += continue_schedule(
            engine.schedule, common.get("schedule", {}), common["progress"]["consumed_samples"], engine.recipe
        )
        return Loaded(progress=common["progress"], notices=notices)
    notices += restore_schedule(engine.schedule, common["schedule"], engine.recipe)
    notices += differences(engine.recipe, common)
    if changes := generators.changes(common["layout"]):
        changed = f"{' and '.join(changes)} {'have' if len(changes) > 1 else 'has'} changed"
        notices.append(f"{changed}: random generators are seeded again from train.seed")
    else:
        generators.restore(_read(directory, {"rng": generators.sharded_states()})["rng"])
    return Loaded(progress=common["progress"], notices=notices)


def opened(directory: Path) -> dict[str, Any]:
    """Verify every file of a checkpoint, a share on each rank, and return `read_common`; all ranks together."""
    if on_rank0(partial(checksums.are_there, directory)):
        share = checksums.Share(dist.get_rank(), dist.get_world_size())
        if problem := first_problem(checksums.damage_in_share(directory, share)):
            raise DamageError(problem)
    return on_rank0(partial(read_common, directory))  # a shared file system may show a file to one rank later


def has_checksums(common: Mapping[str, Any]) -> bool:
    """Say whether the files of a checkpoint that was opened have been verified."""
    return bool(common["format"] != WITHOUT_CHECKSUMS)


def read_common(directory: Path) -> dict[str, Any]:
    """Return the part that is the same on all ranks: format, progress, schedule, model, layout."""
    require_complete(directory)
    with _reading(directory):
        common = common_of(directory)
    require_format(directory, common.get("format"))
    return common


def _read(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    with _reading(directory):
        read_index(directory)
        loaded: dict[str, Any] = dist_checkpointing.load(
            request,
            str(directory),
            sharded_strategy=ReadOnce(),
            common_strategy=NoCommon(),
            validate_access_integrity=False,  # it gathers what every rank requests on each of them
        )
    return loaded


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except _FAULTS as exc:
        msg = f"{directory} is damaged: {_reason(exc)}\nStart from another checkpoint."
        raise CheckpointError(msg) from exc


class NoCommon(TorchCommonLoadStrategy):  # type: ignore[misc]
    """Reads no values that are the same on all ranks: they were read before."""

    def load_common(self, checkpoint_dir: object) -> dict[str, Any]:  # noqa: ARG002
        """Return none."""
        return {}


def _names_in(directory: Path) -> tuple[set[str], set[str]]:
    """Return our names of a checkpoint's weights, and those of the optimizer's state."""
    with _reading(directory):
        shapes = {key: getattr(entry, "size", ()) for key, entry in read_index(directory).state_dict_metadata.items()}
    weights = {name for key, size in shapes.items() if is_weight(key) for name, _ in weight_names(key, (*size, 0)[0])}
    prefix = f"{PREFIX}."
    return weights, {key.removeprefix(prefix).partition(".")[0] for key in shapes if key.startswith(prefix)} - {MAIN}


def _require_same_states(engine: Saved, directory: Path, there: set[str]) -> None:
    ours = engine.state.optimizer_states
    if there != set(ours):
        msg = (
            f"{directory} has the state of another optimizer ({', '.join(sorted(there)) or 'none'}); optimizer.name: "
            f"{engine.recipe.optimizer.name} has {', '.join(ours)}.\n"
            "Name the optimizer of the checkpoint, or set checkpoint.finetune: true to take its weights alone."
        )
        raise CheckpointError(msg)


def _reason(error: BaseException) -> str:
    """Return one line; torch collects the errors of all ranks in an exception whose text is their tracebacks."""
    if isinstance(error, CheckpointException):
        error = next((failure for failure, _ in error.failures.values()), OSError("see the first rank"))
    if error.__cause__ is not None and isinstance(error, CheckpointingException):  # megatron-core's guess at the cause
        error = error.__cause__
    if "weights_only" in str(error) or "Weights only" in str(error).strip().partition("\n")[0]:
        return "a file holds objects that no checkpoint has."  # torch advises to load what may run code
    return first_line(error)


def require_same_weights(engine: Saved, directory: Path, names: Collection[str]) -> None:
    """Check that a checkpoint has all weights of the model, and no others; all ranks call it together."""
    is_first = (parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()) == (0, 0)
    of_stage: set[str] = set(engine.state.weight_names()) if is_first else set()
    ours = tree_of_world().combined(of_stage, lambda some: set[str]().union(*some))
    found = []
    for side, differing in (("lacks {}", ours - set(names)), ("has {} that the model lacks", set(names) - ours)):
        if differing:
            first = ", ".join(sorted(differing)[:_SHOWN]) + (", ..." if len(differing) > _SHOWN else "")
            found.append(side.format(f"{len(differing)} weight{'s' * (len(differing) > 1)} ({first})"))
    if found:
        what = " and ".join(found)
        msg = f"{directory} is of another model: it {what}.\nChange the recipe, or choose another checkpoint."
        raise CheckpointError(msg)
