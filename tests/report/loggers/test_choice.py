"""Loggers are chosen by name: ours by their files, others by their entry points, and what is wrong is said at once."""

from __future__ import annotations

from typing import get_args

import pytest

from pretrain.errors import BackendError, RecipeError, RunError
from pretrain.launch.start_checks import CHECKS, Start
from pretrain.plugins.host.manager import load
from pretrain.plugins.logger import Run
from pretrain.recipe import make_recipe, to_yaml
from pretrain.recipe.sections.outputs import LoggerName
from pretrain.report.loggers import tracker
from pretrain.report.loggers.choice import loggers_of
from recipe.smallest import SMALLEST

MODULE = """
from pretrain.plugins.logger import Logger

@hookimpl
def pretrain_logger(recipe, run):
    return Logger()
"""


def made(*overrides):
    return make_recipe(SMALLEST, [f"logging.{override}" for override in overrides])


def chosen(tmp_path, *overrides):
    return loggers_of(made(*overrides), Run(directory=tmp_path, note=pytest.fail))


def refused(*overrides):
    with pytest.raises(RecipeError) as caught:
        made(*overrides)
    return str(caught.value)


@pytest.fixture
def acme(site):
    """Install a logger, and one that cannot be imported beside it."""
    site.install("acme-logger", "1.0", "pretrain.loggers", acme=site.module("acme_logger", MODULE))
    site.install("broken-logger", "1.0", "pretrain.loggers", broken=site.module("broken_logger", "1 / 0"))


@pytest.mark.parametrize("name", get_args(LoggerName))
def test_ours_are_made_without_their_libraries_and_without_files(tmp_path, name):
    assert list(chosen(tmp_path, f"loggers=[{name}]")) == [name]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("acme")
def test_only_named_loggers_are_imported(tmp_path):
    assert list(chosen(tmp_path, "loggers=[tensorboard,acme]")) == ["tensorboard", "acme"]
    with pytest.raises(BackendError, match=r"logger 'broken' \(broken-logger 1.0\) failed to import: ZeroDivision"):
        chosen(tmp_path, "loggers=[broken]")


@pytest.mark.usefixtures("acme")
def test_an_unknown_name_is_refused_with_those_that_are_there():
    assert (
        "logging.loggers: acne is neither of tensorboard, wandb, mlflow, comet nor installed; installed: acme, broken. "
        "Did you mean 'acme'?"
    ) in refused("loggers=[acne]")


def test_a_name_of_ours_that_a_distribution_registers_too_is_refused(site):
    site.install("my-wandb", "1.0", "pretrain.loggers", wandb="my_wandb")
    assert "wandb is pretrain's own, but my-wandb 1.0 has one of that name too" in refused("loggers=[wandb]")


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loggers=[wandb,wandb]"], "logging.loggers: wandb is named 2 times. Name it once."),
        (["loggers=[broken]", "logger_options={acme: {a: 1}}"], "acme is not in logging.loggers. Add it there"),
        (["loggers=[acme]", "logger_options={wandb: {a: 1}}"], "wandb has keys of its own: logging.wandb_..."),
        (["logger_options={acme: {a: 1}}"], "no effect here; it needs a logger in logging.loggers that another"),
        (["wandb_project=p"], "logging.wandb_project: no effect here; it needs wandb in logging.loggers."),
        (["tensorboard=3"], "tensorboard: 3 is not true or false."),
        (["loggers=[3]"], "logging.loggers.0: 3 is not text."),
        (
            ["loggers=[mlflow]", "mlflow_tracking_uri='https://example.org:pw@example.org/mlflow'"],
            (
                "logging.mlflow_tracking_uri: a password is not written here: it would stand in recipe.yml, in the "
                "report and in trackers. Give the address without it and set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or leave the key out and set MLFLOW_TRACKING_URI."
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    assert message in refused(*overrides)


@pytest.mark.parametrize(
    ("overrides", "loggers"),
    [
        ([], ("tensorboard",)),
        (["tensorboard=true"], ("tensorboard",)),
        (["tensorboard=false"], ()),
        (["tensorboard=null"], ("tensorboard",)),
        (["loggers=[tensorboard,comet]", "tensorboard=false"], ("comet",)),
        (["loggers=[comet]", "tensorboard=true"], ("tensorboard", "comet")),
        (["tensorboard=false", "loggers=[tensorboard]"], ("tensorboard",)),  # the later one wins
    ],
)
def test_the_key_of_before_adds_or_removes_tensorboard(overrides, loggers):
    recipe = made(*overrides)
    assert recipe.logging.loggers == loggers
    assert "tensorboard:" not in to_yaml(recipe)


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("comet", "comet_ml")])
def test_a_missing_package_is_told_before_ranks_start_but_not_to_a_resumed_run(tmp_path, monkeypatch, name, module):
    monkeypatch.setattr(tracker, "has", lambda asked: asked != module)
    (check,) = [each for each in CHECKS if each.name == "loggers"]
    start = Start(recipe=made(f"loggers=[{name}]"), run_dir=tmp_path, resume="no")
    assert str(check.problem(start)) == (
        f"logging.loggers: {name} needs the package {module}, which is not installed.\n"
        f"Install it: pip install 'pretrain[{name}]'. Or leave {name} out of logging.loggers."
    )
    assert isinstance(check.problem(start), RunError)
    (tmp_path / "recipe.yml").touch()
    (tmp_path / "metrics.jsonl").touch()
    resumed = Start(recipe=start.recipe, run_dir=tmp_path, resume="run")
    assert resumed.resumes
    assert check.problem(resumed) is None


@pytest.mark.usefixtures("acme")
def test_trackers_are_not_given_the_settings_of_others():
    recipe = made(
        "loggers=[acme,mlflow]",
        "logger_options={acme: {token: secret}}",
        "mlflow_tracking_uri=http://example.org@example.org",
    )
    assert "secret" not in str(tracker.parameters(recipe))
    assert tracker.parameters(recipe)["logging.mlflow_tracking_uri"] == "http://example.org@example.org"


def test_what_is_no_logger_is_named(site, tmp_path):
    target = site.module("odd_logger", "@hookimpl\ndef pretrain_logger(recipe, run): return 3")
    site.install("odd", "1.0", "pretrain.loggers", odd=target)
    with pytest.raises(
        BackendError, match=r"logger 'odd' \(odd 1.0\): pretrain_logger must return one .*; it returns int"
    ):
        chosen(tmp_path, "loggers=[odd]")


def test_hooks_of_another_group_are_refused(site, tmp_path):
    site.plugin("stray", MODULE)
    with pytest.raises(BackendError, match=r"brings a logger: its entry point belongs in the group pretrain\.loggers"):
        load("cpu")
    target = site.module("kernel_logger", f"{MODULE}\n@hookimpl\ndef pretrain_norm(request): return None")
    site.install("kernels", "1.0", "pretrain.loggers", kernels=target)
    with pytest.raises(BackendError, match=r"implements pretrain_norm: entry points of kernels belong in the group"):
        chosen(tmp_path, "loggers=[kernels]")
