"""`logging.loggers: [wandb]`: Weights & Biases. With WANDB_MODE=offline, `wandb sync` uploads it later."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from pretrain.plugins import hookimpl
from pretrain.plugins.logger import Logger
from pretrain.report.loggers.tracker import id_of, no_login, require_package, shared

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.plugins.logger import LoggedEvent, Metrics, Run
    from pretrain.recipe import Recipe


@hookimpl
def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
    """Return the logger."""
    return WeightsAndBiases(recipe, run)


class WeightsAndBiases(Logger):
    """Log into one run of W&B, whose id is in loggers/wandb of the run directory.

    Its own step only rises, and a resumed training or a rollback repeats iterations: the x-axis is `iteration`.
    """

    def __init__(self, recipe: Recipe, run: Run) -> None:
        self._recipe, self._run = recipe, run
        self._remote: Any = None  # a wandb.Run

    def check(self) -> None:
        """Require the package, and a login unless nothing is sent."""
        require_package("wandb", "wandb")
        import wandb  # noqa: PLC0415  slow to import, and optional

        try:
            sends = wandb.setup(settings=wandb.Settings(silent=True)).settings.mode in {"online", "shared"}
            problem = "" if not sends or wandb.login(prompt=False) else "there is no API key"
        except Exception as error:  # noqa: BLE001  a key that is refused, or a service that is not reached
            problem = str(error)
        finally:
            wandb.teardown()  # of the process that asks the service
        if problem:
            login = "wandb login, or WANDB_API_KEY"
            raise no_login(name="wandb", problem=problem, login=login, offline="WANDB_MODE=offline")

    def start(self) -> None:
        """Begin the run, or continue it."""
        import wandb  # noqa: PLC0415

        section = self._recipe.logging
        self._remote = wandb.init(
            project=section.wandb_project,
            entity=section.wandb_entity,
            name=section.wandb_exp_name or self._run.name,
            group=section.wandb_group,
            id=id_of(self._run, "wandb"),
            resume="allow",
            dir=str(self._run.directory),
            config=shared(self._recipe),
            allow_val_change=True,  # of a resumed run's longer train_iters
            settings=wandb.Settings(console="off", silent=True),
        )
        self._remote.define_metric("iteration")
        self._remote.define_metric("*", step_metric="iteration")
        self._run.note(f"wandb: {self._remote.url or self._remote.dir}")

    def metrics(self, metrics: Metrics) -> None:
        """Log a point of each curve."""
        place = {"iteration": metrics.iteration, "samples": metrics.consumed_samples}
        self._remote.log({**place, **metrics.curves})

    def event(self, event: LoggedEvent) -> None:
        """Send an alert, which W&B shows and mails as its user has set; a resume is seen there anyway."""
        if event.name != "resume":
            self._remote.alert(title=event.name, text=event.text)

    def artifact(self, file: Path) -> None:
        """Put a copy among the run's files."""
        copy = shutil.copy(file, self._remote.dir)
        self._remote.save(copy, base_path=self._remote.dir, policy="now")

    def finish(self, *, failed: bool) -> None:
        """Send what waits."""
        self._remote.finish(exit_code=int(failed))
