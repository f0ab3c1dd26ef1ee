"""Choice of the optimizer that a recipe names: its file says its state and what each engine builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pretrain.engine.optimizers.adam import AdamOptimizer
from pretrain.engine.optimizers.muon import MuonOptimizer
from pretrain.engine.optimizers.optimizer import Optimizer
from pretrain.errors import BackendError, RecipeError
from pretrain.plugins.host.discovery import imported
from pretrain.recipe.sections.optimizer import installed_optimizers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.sections.optimizer import OptimizerSection, StateDtype


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
            optimizer = _installed(section.name)
            if unknown := section.options.keys() - set(optimizer.options):
                allowed = ", ".join(optimizer.options) or "none"
                msg = f"optimizer.options: {section.name} has no {', '.join(sorted(unknown))}.\nAllowed: {allowed}."
                raise RecipeError(msg)
            return optimizer
        case _:
            assert_never(own)


def _installed(name: str) -> Optimizer:
    """Return the optimizer that another distribution has registered; raises BackendError where it is none."""
    installed = next(each for each in installed_optimizers() if each.name == name)  # checked with the recipe
    optimizer = imported(installed)
    if not isinstance(optimizer, Optimizer):
        msg = (
            f"{installed.label}: {installed.target} is no {Optimizer.__module__}.{Optimizer.__name__}.\n"
            "See docs/writing-an-optimizer.md."
        )
        raise BackendError(msg)
    return optimizer


def state_bytes(section: OptimizerSection) -> int:
    """Return the bytes of optimizer state for each parameter of the layers' matrices, without main weights.

    Of the vocabulary's rows there may be more: `most_state_bytes`.
    """
    return min(_state_bytes(section))


def most_state_bytes(section: OptimizerSection) -> int:
    """Return the same for parameters of the kind that has most."""
    return max(_state_bytes(section))


def _state_bytes(section: OptimizerSection) -> list[int]:
    optimizer = optimizer_of(section)
    dtypes = optimizer.state_dtypes(section)
    return [sum(_BYTES[dtypes[name]] for name in optimizer.states_of(kind)) for kind in optimizer.kinds]


_BYTES: Mapping[StateDtype, int] = {"fp32": 4, "bf16": 2}
