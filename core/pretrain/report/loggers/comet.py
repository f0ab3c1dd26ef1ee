"""`logging.loggers: [comet]`: Comet. With COMET_START_ONLINE=0, `comet upload` sends its archives later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.plugins import hookimpl
from pretrain.plugins.logger import Logger
from pretrain.report.loggers.tracker import id_of, no_login, parameters, require_package

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.plugins.logger import LoggedEvent, Metrics, Run
    from pretrain.recipe import Recipe

OFF = dict.fromkeys(
    (
        *("log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch"),
        *("auto_output_logging", "auto_param_logging", "auto_metric_logging", "auto_log_co2"),
    ),
    False,
)
"""What Comet would find out by itself: it patches libraries for that, and environment.json says what there is."""


@hookimpl
def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
    """Return the logger."""
    return Comet(recipe, run)


class Comet(Logger):
    """Log into one experiment, whose key is in loggers/comet of the run directory; offline, each start has a file."""

    def __init__(self, recipe: Recipe, run: Run) -> None:
        self._recipe, self._run = recipe, run
        self._experiment: Any = None  # a comet_ml.CometExperiment

    def check(self) -> None:
        """Require the package, and an API key unless nothing is sent."""
        require_package("comet_ml", "comet")
        from comet_ml.config import get_api_key, get_config  # noqa: PLC0415  slow to import, and optional

        config = get_config()
        sends = config.get_bool(None, "comet.start.online", default=None, not_set_value=None)  # None: by default
        if sends is not False and not get_api_key(None, config):
            login = "comet login, or COMET_API_KEY"
            raise no_login(name="comet", problem="there is no API key", login=login, offline="COMET_START_ONLINE=0")

    def start(self) -> None:
        """Begin the experiment, or continue it."""
        import comet_ml  # noqa: PLC0415

        section = self._recipe.logging
        self._experiment = comet_ml.start(
            workspace=section.comet_workspace,
            project=section.comet_project,
            experiment_key=id_of(self._run, "comet"),
            mode="get_or_create",
            experiment_config=comet_ml.ExperimentConfig(
                name=section.comet_experiment_name or self._run.name,
                tags=list(section.comet_tags),
                offline_directory=str(self._run.directory / "comet"),
                display_summary_level=0,
                **OFF,
            ),
        )
        self._experiment.log_parameters(parameters(self._recipe))

    def metrics(self, metrics: Metrics) -> None:
        """Log a point of each curve."""
        self._experiment.log_metrics(dict(metrics.curves), step=metrics.iteration)

    def event(self, event: LoggedEvent) -> None:
        """Log the text, which the experiment's page shows with its step."""
        self._experiment.log_text(event.text, step=event.iteration, metadata={"event": event.name})

    def artifact(self, file: Path) -> None:
        """Upload a file."""
        self._experiment.log_asset(str(file), file_name=file.name, overwrite=True)

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002  Comet has no failed experiments
        """Send what waits."""
        self._experiment.end()
