"""The composition root: from a recipe and a backend's name to a finished run, evaluation or text, on one rank."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.exit_codes import End
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.training.training_data import Split


_MODULES = (
    "pretrain.training.assembly",
    "pretrain.training.reporting.run_output",
    "pretrain.training.trained_model",
    "torch._inductor",  # by torch.use_deterministic_algorithms
)
"""What ranks import later than the bridge."""


def train(recipe: Recipe, *, backend_name: str, run_dir: Path, resume: bool, world: World) -> End:
    """Train as one rank of `world`, and return how that has ended; called once per process."""
    started = time.time()
    plugins = ready(recipe, backend_name)
    from pretrain.training.assembly import assemble  # noqa: PLC0415  imports megatron.core: after the bridge
    from pretrain.training.rank_setup import deterministic  # noqa: PLC0415
    from pretrain.training.reporting.run_output import finish  # noqa: PLC0415
    from pretrain.training.safeguards.rank_watch import record_collectives  # noqa: PLC0415
    from pretrain.training.stopping import end_of  # noqa: PLC0415

    record_collectives()
    with (
        deterministic(is_wanted=recipe.train.deterministic_mode),
        assemble(recipe, plugins, run_dir, world, resume=resume, started=started) as training,
    ):
        reason = training.run()
        if world.rank == 0:
            finish(training.meter.logger, run_dir, reason, training.progress.iteration)
        return end_of(reason, saves=recipe.checkpoint.save is not False)


def evaluate(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    checkpoint: str,
    splits: Sequence[Split],
    iters: int | None,
    as_json: bool,
) -> None:
    """Evaluate a checkpoint as one rank of `world`, and print the losses on rank 0; called once per process."""
    # `checkpoint` is a folder, as `trained_model.load_weights` takes it; `iters` are global batches, None the recipe's.
    plugins = ready(recipe, backend_name)
    from pretrain.training.trained_model import evaluate_checkpoint, trained_model, with_evaluation  # noqa: PLC0415

    with trained_model(with_evaluation(recipe, iters), plugins, checkpoint, world) as model:
        evaluate_checkpoint(model, splits, as_json=as_json)


def evaluate_tasks(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    checkpoint: str,
    tasks: Sequence[str],
    include_path: str | None,
    num_fewshot: int | None,
    limit: int | None,
    run_dir: str | None,
    as_json: bool,
) -> None:
    """Evaluate a checkpoint on tasks of lm-evaluation-harness as one rank of `world`; called once per process."""
    # The results go into the metrics and the report of the run in `run_dir`, if it is given.
    plugins = ready(recipe, backend_name)
    from pretrain.training import task_evaluation  # noqa: PLC0415  after the bridge
    from pretrain.training.trained_model import trained_model  # noqa: PLC0415

    task_evaluation.harness()  # before anything takes long
    asked = task_evaluation.with_tasks(recipe, tasks, include_path=include_path, num_fewshot=num_fewshot, limit=limit)
    with trained_model(asked, plugins, checkpoint, world) as model:
        folder = None if run_dir is None else Path(run_dir)
        task_evaluation.evaluate_checkpoint_on_tasks(model, folder, as_json=as_json)


def generate(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    checkpoint: str,
    prompt: str,
    max_new_tokens: int,
    **sampling: Any,
) -> None:
    """Continue a prompt as one rank of `world`, and print the text on rank 0 as it comes; called once per process."""
    plugins = ready(recipe, backend_name)
    from pretrain.training.generation import Sampling, generate_text  # noqa: PLC0415  after the bridge
    from pretrain.training.trained_model import trained_model  # noqa: PLC0415

    with trained_model(recipe, plugins, checkpoint, world) as model:
        generate_text(model, prompt, max_new_tokens, Sampling(**sampling))


_imported: Plugins | None = None
"""Those that this process had when it was forked."""


def import_modules(recipe: Recipe, backend_name: str) -> None:
    """Import what the functions above need, and touch no device: in a process from which ranks are forked."""
    global _imported  # noqa: PLW0603  the ranks are this process's forks
    from pretrain.bridge import megatron  # noqa: PLC0415  as in `ready`

    plugins = _loaded(recipe, backend_name)
    megatron.install(plugins.backend)
    for module in _MODULES:
        importlib.import_module(module)
    if recipe.engine.name == "deepspeed":
        from pretrain.bridge import deepspeed  # noqa: PLC0415

        deepspeed.install(plugins.backend)
        importlib.import_module("pretrain.engine.deepspeed.engine")
    _imported = plugins


def ready(recipe: Recipe, backend_name: str) -> Plugins:
    """Load the backend, whose device must be there, and install the bridge for it; called once per process."""
    from pretrain.bridge import megatron  # noqa: PLC0415  nothing here is imported before it is needed
    from pretrain.plugins.host.members import require_device, require_module  # noqa: PLC0415

    plugins = _loaded(recipe, backend_name)
    require_device(plugins)
    require_module(plugins)
    megatron.install(plugins.backend)
    return plugins


def _loaded(recipe: Recipe, backend_name: str) -> Plugins:
    """Return the plugins, and set the variables that the backend wants."""
    from pretrain.plugins.host.manager import load  # noqa: PLC0415
    from pretrain.plugins.host.members import environment  # noqa: PLC0415

    plugins = _imported or load(backend_name)
    for name, value in environment(plugins, recipe).items():
        os.environ.setdefault(name, value)
    return plugins
