"""The job of ranks that evaluate, generate or are examined: plain values, sent to other processes as JSON."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pretrain.data.needed import SampleCounts
from pretrain.exit_codes import End
from pretrain.launch.early_exit import early_exit_fails
from pretrain.launch.inputs import require_inputs
from pretrain.launch.one_recipe import require_one_recipe
from pretrain.launch.restart_count import agree_on_restart_count

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from pretrain.launch.world import World
    from pretrain.recipe import Recipe

EVALUATE = "pretrain.training.run:evaluate"
GENERATE = "pretrain.training.run:generate"
EXAMINE = "pretrain.tools.doctor.examination:examine"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardJob:
    """Evaluation, generation or examination as its ranks receive it; it has no run directory.

    Attributes:
        recipe: the recipe's file.
        overrides: "section.key=value".
        backend: value of `--backend`.
        function: "module:function", called with recipe, backend_name, world and the options.
        options: values that JSON knows.
        reads_data: whether the recipe's token files must be there.
        patience: seconds that the ranks of a node have after the first of them has ended, even by a failure; then they
            are ended, and the job has failed. None: no limit, and a failure ends them at once.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    backend: str
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reads_data: bool
    patience: float | None = None

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ForwardJob:
        """Return the job of a line that `to_json` made."""
        values = json.loads(text)
        return cls(**{**values, "overrides": tuple(values["overrides"])})

    def prepared_by_launcher(self, recipe: Recipe, lock: ExitStack) -> ForwardJob:  # noqa: ARG002  nothing is written
        """Check the input files before ranks start; return the job itself.

        Raises:
            PretrainError: one is missing or damaged.
        """
        if self.reads_data:
            require_inputs(recipe, SampleCounts(train=0))  # splits are checked where those of the command are known
        return self

    def run(self, world: World) -> End:
        """Call the function in this process as one rank of `world`; return that it has done its work."""
        from pretrain.recipe import load_recipe  # noqa: PLC0415  not needed to describe a job

        os.environ.update(world.environment())
        agree_on_restart_count(world)
        module, _, name = self.function.partition(":")
        call = getattr(importlib.import_module(module), name)
        recipe = load_recipe(self.recipe, self.overrides)
        with early_exit_fails():
            if world.world_size > world.local_world_size and self.function != EXAMINE:  # which says itself what differs
                require_one_recipe(recipe, self.backend, world, lambda: None, reads_data=self.reads_data)
            call(recipe, backend_name=self.backend, world=world, **self.options)
        return End()
