"""`logging.loggers: [mlflow]`: MLflow, on a server or, with the whole of its package, in a database file."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pretrain.errors import RunError
from pretrain.plugins import hookimpl
from pretrain.plugins.installed import has
from pretrain.plugins.logger import Logger
from pretrain.report.loggers.tracker import parameters, require_package

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.plugins.logger import LoggedEvent, Metrics, Run
    from pretrain.recipe import Recipe

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Where the user sets none: MLflow tries a server that is away for minutes, in which records would pile up."""
_MOST_PARAMETERS, _LONGEST, _LONGEST_NAME = 100, 6000, 250
"""Of one call; characters of a value and of a curve's name: the server's own limits."""
_DATABASES = {"sqlite", "postgresql", "mysql", "mssql"}
"""Schemes that MLflow opens by SQLAlchemy; others are servers and services, such as databricks."""


@hookimpl
def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
    """Return the logger."""
    return MLflow(recipe, run)


class MLflow(Logger):
    """Log into one run of MLflow, whose id is in loggers/mlflow of the run directory."""

    def __init__(self, recipe: Recipe, run: Run) -> None:
        self._recipe, self._run = recipe, run
        self._client: Any = None  # an MlflowClient
        self._id = ""

    def check(self) -> None:
        """Require the package, and a server that answers."""
        require_package("mlflow", "mlflow")
        import mlflow  # noqa: PLC0415  slow to import, and optional

        uri = self._recipe.logging.mlflow_tracking_uri or mlflow.get_tracking_uri()
        scheme = urlsplit(uri).scheme.partition("+")[0]
        if scheme in {"http", "https"}:
            _require_answer(uri)
        elif scheme in _DATABASES and not has("sqlalchemy"):
            msg = (
                f"logging.mlflow_tracking_uri: {_shown(uri)} is a database, which mlflow-skinny does not open.\n"
                "Give the address of a server, or install all of MLflow: pip install mlflow"
            )
            raise RunError(msg)

    def start(self) -> None:
        """Begin the run, or continue it."""
        from mlflow import MlflowClient  # noqa: PLC0415
        from mlflow.entities import Param  # noqa: PLC0415

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient(self._recipe.logging.mlflow_tracking_uri)
        self._id = self._run.kept("mlflow")
        if self._id:
            self._client.update_run(self._id, status="RUNNING")  # its parameters cannot be changed; recipe.yml has them
            return
        name = self._recipe.logging.mlflow_run_name or self._run.name
        self._id = self._client.create_run(self._experiment(), run_name=name).info.run_id
        self._run.keep("mlflow", self._id)
        params = [Param(key, str(value)[:_LONGEST]) for key, value in parameters(self._recipe).items()]
        for first in range(0, len(params), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=params[first : first + _MOST_PARAMETERS])

    def _experiment(self) -> str:
        """Return the experiment's id; it is made if it is absent."""
        name = self._recipe.logging.mlflow_experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def metrics(self, metrics: Metrics) -> None:
        """Log a point of each curve."""
        from mlflow.entities import Metric  # noqa: PLC0415

        now, step = int(time.time() * 1000), metrics.iteration
        self._client.log_batch(
            self._id, metrics=[Metric(_allowed(name), float(y), now, step) for name, y in metrics.curves.items()]
        )

    def event(self, event: LoggedEvent) -> None:
        """Set a tag, which the run's page shows."""
        self._client.set_tag(self._id, f"event.{event.iteration}.{event.name}", event.text)

    def artifact(self, file: Path) -> None:
        """Upload a file."""
        self._client.log_artifact(self._id, str(file))

    def finish(self, *, failed: bool) -> None:
        """Say how the run has ended."""
        self._client.set_terminated(self._id, status="FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """Return the name of a curve as MLflow takes it (mlflow/utils/validation.py)."""
    return re.sub(r"[^\w.\- /]", "_", name)[:_LONGEST_NAME]


def _shown(uri: str) -> str:
    """Return an address, such as that of MLFLOW_TRACKING_URI, without its password."""
    return re.sub(r"(://[^/@]*):[^/]*@", r"\1:***@", uri)


def _require_answer(uri: str) -> None:
    import requests  # noqa: PLC0415  a dependency of mlflow, with the user's proxies
    from mlflow import environment_variables as given  # noqa: PLC0415

    verify = not given.MLFLOW_TRACKING_INSECURE_TLS.get() and (given.MLFLOW_TRACKING_SERVER_CERT_PATH.get() or True)
    cert = given.MLFLOW_TRACKING_CLIENT_CERT_PATH.get()
    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=10, verify=verify, cert=cert)
    except requests.RequestException as error:
        reason = "it does not answer in 10 s" if isinstance(error, requests.Timeout) else type(error).__name__
        msg = (
            f"logging.mlflow_tracking_uri: {_shown(uri)} cannot be reached ({reason}).\n"
            "Start it (mlflow server --host HOST --port PORT), correct the address, or leave mlflow out of "
            "logging.loggers."
        )
        raise RunError(msg) from error
