"""Choice of the optimizer that a recipe names: its file says its state and what each engine builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pretrain.engine.optimizers.adam import AdamOptimizer
from pretrain.engine.optimizers.muon import MuonOptimizer
from pretrain.engine.optimizers.optimizer import Optimizer
from pretrain.errors import BackendError
from pretrain.plugins.host.discovery import cause
from pretrain.recipe.sections.optimizer import installed_optimizers

if TYPE_CHECKING:
    from pretrain.recipe.sections.optimizer import OptimizerSection


def optimizer_of(section: OptimizerSection) -> Optimizer:
    """Return the optimizer that the section names."""
    match own := section.own:
        case "adamw":
            return AdamOptimizer(is_decoupled=True)
        case "adam":
            return AdamOptimizer(is_decoupled=False)
        case "muon":
            return MuonOptimizer()
        case None:
            return _installed(section.name)
        case _:
            assert_never(own)


def _installed(name: str) -> Optimizer:
    """Return the optimizer that another distribution has registered; raises BackendError where it is none."""
    entry = installed_optimizers()[name]
    who = f"optimizer '{name}' ({entry.value}{f' of {entry.dist.name} {entry.dist.version}' if entry.dist else ''})"
    try:
        found = entry.load()
        optimizer = found() if isinstance(found, type) else found
    except Exception as error:
        msg = f"{who} cannot be loaded: {cause(error)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from error
    if not isinstance(optimizer, Optimizer):
        msg = f"{who} is no {Optimizer.__module__}.{Optimizer.__name__}.\nSee docs/writing-an-optimizer.md."
        raise BackendError(msg)
    return optimizer


def state_bytes(section: OptimizerSection) -> int:
    """Return the bytes of optimizer state for each parameter of the layers, without main weights."""
    # Of matrices, which nearly all of the layers' parameters are in; other weights may have more states.
    optimizer = optimizer_of(section)
    return 4 * len(optimizer.states_of(optimizer.of_matrices))
