"""The loggers that a recipe names: ours are files beside this one, others come from installed distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from pretrain import __version__
from pretrain.distributions import Installed, Role
from pretrain.errors import BackendError
from pretrain.plugins.host.discovery import load_plugin
from pretrain.plugins.host.manager import call_alone
from pretrain.plugins.logger import Logger
from pretrain.recipe.sections.outputs import LoggerName, installed_loggers

if TYPE_CHECKING:
    from pretrain.plugins.logger import Run
    from pretrain.recipe import Recipe


def loggers_of(recipe: Recipe, run: Run) -> dict[str, Logger]:
    """Return the named loggers, not started; only their modules are imported. BackendError: one is no logger."""
    return {name: _made(_named(name), recipe, run) for name in recipe.logging.loggers}


def _named(name: str) -> Installed:
    if name in get_args(LoggerName):
        target = f"{__package__}.{name}"
        return Installed(role=Role.LOGGER, name=name, target=target, distribution="pretrain", version=__version__)
    return next(each for each in installed_loggers() if each.name == name)  # checked with the recipe


def _made(installed: Installed, recipe: Recipe, run: Run) -> Logger:
    answers = call_alone(load_plugin(installed), "pretrain_logger", recipe=recipe, run=run)
    if len(answers) != 1 or not isinstance(answers[0], Logger):
        given = ", ".join(type(answer).__name__ for answer in answers) or "nothing"
        msg = (
            f"{installed.label}: pretrain_logger must return one {Logger.__module__}.{Logger.__name__}; it returns "
            f"{given}.\nSee docs/writing-a-logger.md."
        )
        raise BackendError(msg)
    return answers[0]
