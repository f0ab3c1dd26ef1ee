"""What the trackers share: their package, the keys of a recipe as flat parameters, and the id of a new run."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.plugins.installed import has

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.plugins.logger import Run
    from pretrain.recipe import Recipe


def require_package(module: str, name: str) -> None:
    """Check that a tracker's library is installed, without importing it."""
    if not has(module):
        msg = (
            f"logging.loggers: {name} needs the package {module}, which is not installed.\n"
            f"Install it: pip install 'pretrain[{name}]'. Or leave {name} out of logging.loggers."
        )
        raise RunError(msg)


def no_login(*, name: str, problem: str, login: str, offline: str) -> RunError:
    """Return the error of a tracker that cannot send to its service."""
    return RunError(
        f"logging.loggers: {name} is not logged in: {' '.join(problem.split()).rstrip('.')}.\n"
        f"Log in ({login}), or write into the run directory and upload later: {offline} pretrain ..."
    )


def id_of(run: Run, name: str) -> str:
    """Return the id of the remote run, made and kept before the service hears of it."""
    kept = run.kept(name)
    if not kept:
        kept = uuid.uuid4().hex
        run.keep(name, kept)
    return kept


def shared(recipe: Recipe) -> dict[str, Any]:
    """Return the sections of a recipe for a tracker, without the settings of other loggers, which may be private."""
    return recipe.model_dump(mode="json", exclude_none=True, exclude={"logging": {"logger_options"}})


def parameters(recipe: Recipe) -> dict[str, Any]:
    """Return every key of `shared` with its value: "model.num_layers", ..."""
    return dict(_flat("", shared(recipe)))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value
