"""Names that this package or an installed distribution gives a meaning: optimizers and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from pretrain.distributions import registered_twice
from pretrain.errors import did_you_mean
from pretrain.recipe.problem import Problem
from pretrain.recipe.sections.outputs import LOGGERS, LoggerName, installed_loggers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.distributions import Installed
    from pretrain.recipe.recipe import Recipe


def name_problems(
    path: str, name: str, own: Sequence[str], installed: Sequence[Installed], group: str
) -> Iterator[Problem]:
    """Yield a name that nothing has, or that several have: which one is meant is not guessed."""
    found = [each for each in installed if each.name == name]
    if name not in own and not found:
        names = [each.name for each in installed]
        others = f"installed: {', '.join(names)}" if names else f"none is installed as {group}"
        hint = did_you_mean(name, [*own, *names])
        yield Problem(path, f"{name} is neither of {', '.join(own)} nor installed; {others}.{hint}")
    elif name in own and found:
        others = " and ".join(each.provider for each in found)
        remove = " ".join(each.distribution or "<its distribution>" for each in found)
        text = f"{name} is pretrain's own, but {others} has one of that name too, which would not be used."
        yield Problem(path, f"{text} pip uninstall {remove}, or have it registered under another name.")
    elif len(found) > 1:
        yield Problem(path, registered_twice(found).replace("\n", " "))


def logger_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield loggers that are not there, are named twice, or have options without being named."""
    section, installed = recipe.logging, installed_loggers()
    for name in dict.fromkeys(section.loggers):
        yield from name_problems("logging.loggers", name, get_args(LoggerName), installed, LOGGERS)
        if section.loggers.count(name) > 1:
            yield Problem("logging.loggers", f"{name} is named {section.loggers.count(name)} times. Name it once.")
    for name in section.logger_options if section.of_others else ():
        if name in get_args(LoggerName):
            yield Problem("logging.logger_options", f"{name} has keys of its own: logging.{name}_...")
        elif name not in section.loggers:
            yield Problem("logging.logger_options", f"{name} is not in logging.loggers. Add it there, or remove this.")
