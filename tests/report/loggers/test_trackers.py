"""The trackers against their own libraries: W&B and Comet offline, MLflow on a server of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cli.trained import call, settings, write_recipe
from pretrain.errors import RunError
from pretrain.plugins.installed import has
from pretrain.plugins.logger import Metrics, Run
from pretrain.recipe import make_recipe
from pretrain.report.loggers import mlflow as mlflow_logger
from pretrain.report.loggers.choice import loggers_of
from pretrain.report.metrics import EvalRecord, EventRecord, TaskRecord, read_metrics
from pretrain.training.progress import Progress
from pretrain.training.reporting.run_output import RunLogger
from recipe.smallest import SMALLEST

pytestmark = [pytest.mark.full, pytest.mark.slow]


def of_package(name):
    return pytest.mark.skipif(not has(name), reason=f"needs the package {name}, which is not installed")


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "a-run"
    folder.mkdir()
    for name in ("recipe.yml", "report.html"):
        (folder / name).write_text(name)
    return folder


def recipe_of(*overrides):
    return make_recipe(SMALLEST, [f"logging.{override}" for override in overrides])


@contextmanager
def logging(run_dir, *overrides, resumed_at=None):
    """Open the loggers of a recipe as rank 0 does."""
    setup = SimpleNamespace(recipe=recipe_of(*overrides), world=SimpleNamespace(rank=0))
    progress = Progress(iteration=resumed_at or 0, consumed_samples=8 * (resumed_at or 0))
    with RunLogger(setup, run_dir, 100, progress, resumed=resumed_at is not None) as logger:
        yield logger


def train_with_a_rollback_and_a_resume(run_dir, train_record, *overrides):
    with logging(run_dir, *overrides) as logger:
        logger.artifact(run_dir / "recipe.yml")
        for iteration in (10, 20):
            logger.train(train_record(iteration))
        logger.evaluation(EvalRecord.of("valid", 20, 2.0), 160)
        logger.task(TaskRecord(iteration=20, task="gsm8k", num_fewshot=0, limit=None, metrics=CHOSEN), 160)
        logger.go_back(Progress(iteration=10, consumed_samples=80))
        logger.event(EventRecord(event="rollback", iteration=10, text="back to iteration 10"))
        logger.train(train_record(15, lm_loss=3.0))
        logger.artifact(run_dir / "report.html")
    with logging(run_dir, *overrides, resumed_at=10) as logger:
        logger.train(train_record(15, lm_loss=2.0))


CHOSEN = {"exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.1}
OF_TASK = "tasks/gsm8k exact_match/strict-match"

POINTS = [(10, 4.25), (20, 4.25), (15, 3.0), (15, 2.0)]
"""Iteration and loss in the order in which they were logged."""


# Weights & Biases


def records_of(file):
    """Yield the records of a .wandb file: LevelDB's log format with a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or its last part
            yield Record.FromString(whole)
            whole = b""


def items_of(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def end_of_process():
    """Do what wandb does then: its service writes what it has, and forgets the settings."""
    import wandb

    wandb.teardown()


@of_package("wandb")
def test_wandb_offline_has_one_run_with_the_iteration_as_axis(run_dir, train_record, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    keys = ("loggers=[wandb]", "wandb_project=prose", "wandb_exp_name=first", "wandb_group=small")
    (logger,) = loggers_of(recipe_of(*keys), Run(directory=run_dir, note=pytest.fail)).values()
    logger.check()
    train_with_a_rollback_and_a_resume(run_dir, train_record, *keys)
    end_of_process()
    files = sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == 2  # `wandb sync` joins them by their id
    records = [record for file in files for record in records_of(file)]
    runs = [record.run for record in records if record.HasField("run")]
    identity = {(run.project, run.display_name, run.run_group, run.run_id) for run in runs}
    assert identity == {("prose", "first", "small", (run_dir / "loggers" / "wandb").read_text().strip())}
    config = items_of(runs[0].config.update)
    assert config["train"]["train_iters"] == SMALLEST["train"]["train_iters"]
    history = [items_of(record.history.item) for record in records if record.HasField("history")]
    assert [(each["iteration"], each["lm loss"]) for each in history if "lm loss" in each] == POINTS
    assert [each["lm loss validation"] for each in history if "lm loss validation" in each] == [2.0]
    assert [each[OF_TASK] for each in history if OF_TASK in each] == [0.25]
    axes = {record.metric.glob_name or record.metric.name: record.metric.step_metric for record in records}
    assert axes["*"] == "iteration"
    assert [record.alert.title for record in records if record.HasField("alert")] == ["rollback"]
    assert {file.name for file in run_dir.glob("wandb/offline-run-*/files/*")} >= {"recipe.yml", "report.html"}
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0, 0]
    assert "warning" not in capsys.readouterr().out


@of_package("wandb")
def test_wandb_without_a_login_says_how_to_go_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert refusal(tmp_path, "loggers=[wandb]") == (
        "logging.loggers: wandb is not logged in: there is no API key.\n"
        "Log in (wandb login, or WANDB_API_KEY), or write into the run directory and upload later: "
        "WANDB_MODE=offline pretrain ..."
    )


def refusal(tmp_path, *overrides):
    (logger,) = loggers_of(recipe_of(*overrides), Run(directory=tmp_path, note=pytest.fail)).values()
    with pytest.raises(RunError) as caught:
        logger.check()
    return str(caught.value)


# Comet


@of_package("comet_ml")
def test_comet_offline_has_one_experiment(run_dir, train_record, monkeypatch, capsys):
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    keys = ("loggers=[comet]", "comet_project=prose", "comet_experiment_name=first", "comet_tags=[small]")
    (logger,) = loggers_of(recipe_of(*keys), Run(directory=run_dir, note=pytest.fail)).values()
    logger.check()
    train_with_a_rollback_and_a_resume(run_dir, train_record, *keys)
    archives = sorted(run_dir.glob("comet/*.zip"), key=lambda file: file.stat().st_mtime_ns)
    assert len(archives) == 2
    messages, experiments = [], []
    for archive in map(zipfile.ZipFile, archives):
        experiments.append(json.loads(archive.read("experiment.json")))
        messages += [json.loads(line) for line in archive.read("messages.json").splitlines()]
    (key,) = {each["offline_id"] for each in experiments}
    assert key == (run_dir / "loggers" / "comet").read_text().strip()
    assert {each["project_name"] for each in experiments} == {"prose"}
    metrics = [each["payload"]["metric"] | each["payload"] for each in messages if each["type"] == "metric_msg"]
    assert [(each["step"], each["metricValue"]) for each in metrics if each["metricName"] == "lm loss"] == POINTS
    assert [(each["step"], each["metricValue"]) for each in metrics if each["metricName"] == OF_TASK] == [(20, 0.25)]
    held = [archive.read(name) for archive in map(zipfile.ZipFile, archives) for name in archive.namelist()]
    text = b"".join(held).decode(errors="replace")
    words = ("back to iteration 10", "resumed after iteration 10", "train.train_iters", "report.html", "small", "first")
    assert [word for word in words if word not in text] == []
    assert "warning" not in capsys.readouterr().out


@of_package("comet_ml")
def test_comet_without_a_login_says_how_to_go_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("COMET_API_KEY", "COMET_START_ONLINE"):
        monkeypatch.delenv(name, raising=False)
    assert "Log in (comet login, or COMET_API_KEY), or write into" in refusal(tmp_path, "loggers=[comet]")


# MLflow


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Server:
    """`mlflow server` on a SQLite file; of another environment if PRETRAIN_TEST_MLFLOW names its command."""

    def __init__(self, folder):
        mine = [sys.executable, "-m", "mlflow"] if has("sqlalchemy") and has("mlflow") else None
        command = [os.environ["PRETRAIN_TEST_MLFLOW"]] if "PRETRAIN_TEST_MLFLOW" in os.environ else mine
        if command is None:
            pytest.skip("needs all of mlflow, or PRETRAIN_TEST_MLFLOW=.../bin/mlflow")
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        store = ["--backend-store-uri", f"sqlite:///{folder}/m.db", "--artifacts-destination", str(folder / "files")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store],
                stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 300
        while not self.answers():
            assert self.process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.5)

    def answers(self):
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=5).status == 200
        except OSError:
            return False

    def get(self, what, **query):
        address = f"{self.uri}/api/2.0/mlflow/{what}?{urllib.parse.urlencode(query)}"
        return json.load(urllib.request.urlopen(address, timeout=60))

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    one = Server(folder)
    yield one
    one.kill()


@of_package("mlflow")
def test_a_server_of_mlflow_has_one_run(server, run_dir, train_record, capsys):
    keys = ("loggers=[mlflow]", f"mlflow_tracking_uri={server.uri}", "mlflow_experiment=prose")
    (logger,) = loggers_of(recipe_of(*keys), Run(directory=run_dir, note=pytest.fail)).values()
    logger.check()
    train_with_a_rollback_and_a_resume(run_dir, train_record, *keys)
    identity = (run_dir / "loggers" / "mlflow").read_text().strip()
    found = server.get("runs/get", run_id=identity)["run"]
    assert (found["info"]["run_name"], found["info"]["status"]) == ("a-run", "FINISHED")
    experiment = server.get("experiments/get-by-name", experiment_name="prose")["experiment"]
    assert found["info"]["experiment_id"] == experiment["experiment_id"]
    params = {each["key"]: each["value"] for each in found["data"]["params"]}
    assert params["train.train_iters"] == str(SMALLEST["train"]["train_iters"])
    history = server.get("metrics/get-history", run_id=identity, metric_key="lm loss")["metrics"]
    assert sorted((each["step"], each["value"]) for each in history) == sorted(POINTS)
    history = server.get("metrics/get-history", run_id=identity, metric_key=OF_TASK)["metrics"]
    assert [(each["step"], each["value"]) for each in history] == [(20, 0.25)]
    tags = {each["key"]: each["value"] for each in found["data"]["tags"]}
    assert tags["event.10.rollback"] == "back to iteration 10"
    assert tags["event.10.resume"] == "resumed after iteration 10"
    files = server.get("artifacts/list", run_id=identity)["files"]
    assert {each["path"] for each in files} == {"recipe.yml", "report.html"}
    assert "warning" not in capsys.readouterr().out
    logger.start()
    logger.metrics(Metrics(kind="train", iteration=30, consumed_samples=240, curves={"their loss (%)": 3.0}))
    history = server.get("metrics/get-history", run_id=identity, metric_key="their loss ___")["metrics"]
    assert [each["value"] for each in history] == [3.0]


@of_package("mlflow")
def test_a_server_behind_tls_is_asked_with_the_users_certificates(tmp_path, monkeypatch):
    import requests

    asked = []
    monkeypatch.setattr(requests, "get", lambda url, **how: asked.append((url, how["verify"], how["cert"])))
    recipe = recipe_of("loggers=[mlflow]", "mlflow_tracking_uri=https://example.org/mlflow/")
    (logger,) = loggers_of(recipe, Run(directory=tmp_path, note=pytest.fail)).values()
    logger.check()
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", "ca.pem")
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", "me.pem")
    logger.check()
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    logger.check()
    url = "https://example.org/mlflow/health"
    assert asked == [(url, True, None), (url, "ca.pem", "me.pem"), (url, False, "me.pem")]


@of_package("mlflow")
@pytest.mark.parametrize("scheme", ["azureml", "databricks", "arn:aws:sagemaker"])
def test_a_service_is_no_database(tmp_path, monkeypatch, scheme):
    monkeypatch.setattr(mlflow_logger, "has", lambda _: False)
    recipe = recipe_of("loggers=[mlflow]", f"mlflow_tracking_uri='{scheme}:eu:1:server'")
    (logger,) = loggers_of(recipe, Run(directory=tmp_path, note=pytest.fail)).values()
    logger.check()


@of_package("mlflow")
def test_a_server_that_is_killed_costs_a_warning_and_no_loss_changes(server, tmp_path, site, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    source = f"""
    import os, signal
    from pretrain.plugins.logger import Logger

    class Killer(Logger):
        def metrics(self, metrics):
            if metrics.iteration == 1:
                os.killpg({server.process.pid}, signal.SIGKILL)

    @hookimpl
    def pretrain_logger(recipe, run):
        return Killer()
    """
    site.install("killer", "1.0", "pretrain.loggers", killer=site.module("killer_logger", source))
    recipe, losses = write_recipe(tmp_path), []
    for name, loggers in (("plain", "[]"), ("killed", f"[mlflow,killer], mlflow_tracking_uri: '{server.uri}'")):
        options = settings(f"logging={{log_interval: 1, loggers: {loggers}}}")
        assert call("run", recipe, "--run-dir", tmp_path / name, *options) == 0
        losses.append([record["lm_loss"] for record in read_metrics(tmp_path / name / "metrics.jsonl")])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5
    said = capfd.readouterr().out
    assert said.count("warning: logger mlflow: ") == 1
    assert "done: 3 iterations" in said


@of_package("mlflow")
def test_a_server_that_is_not_there_is_told_before_the_first_step(tmp_path):
    uri = f"http://127.0.0.1:{free_port()}"
    assert refusal(tmp_path, "loggers=[mlflow]", f"mlflow_tracking_uri={uri}") == (
        f"logging.mlflow_tracking_uri: {uri} cannot be reached (ConnectionError).\n"
        "Start it (mlflow server --host HOST --port PORT), correct the address, or leave mlflow out of "
        "logging.loggers."
    )


@of_package("mlflow")
def test_a_database_without_all_of_mlflow_is_told_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_logger, "has", lambda _: False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://me:pw@host/db")
    assert ("postgresql+psycopg2://me:***@host/db is a database, which mlflow-skinny does not open") in refusal(
        tmp_path, "loggers=[mlflow]"
    )
