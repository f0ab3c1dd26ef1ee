"""Evaluation of tasks beside the steps, with lm-eval made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pretrain.data.tokenizers.tokenizer import ByteTokenizer
from pretrain.engine.protocol import ScoredTokens
from pretrain.errors import TaskError
from pretrain.report.hang.position import Position
from pretrain.training import task_evaluation
from pretrain.training.task_evaluation import TaskEvaluation, TaskEvaluations, with_tasks


@pytest.mark.usefixtures("alone")
def test_ranks_wait_for_lm_eval_in_a_group_of_their_own_that_is_patient(make, monkeypatch):
    position, made, used, at = Position(), [], [], []

    def library_at(what, found):
        at.append((what, position.activity))
        return found

    def log_likelihoods(samples):
        return library_at("computes", torch.zeros(len(samples), 2))

    library = SimpleNamespace(
        load_tasks=lambda section: library_at("loads", "tasks"),
        HarnessModel=lambda tokenizer, length, score, at_once, quiet: score,
        evaluate_tasks=lambda loaded, score, section: library_at("asks", score([ScoredTokens([1, 2], 1)])),
    )

    class Patient:
        def first_of(self, value):
            used.append(value)
            return value

    monkeypatch.setattr(task_evaluation, "harness", lambda: library)
    monkeypatch.setattr(
        task_evaluation, "between_hosts", lambda name, minutes: made.append((name, minutes)) or Patient()
    )
    setup = SimpleNamespace(
        tokenizer=ByteTokenizer(),
        recipe=make(),
        world=SimpleNamespace(rank=0),
        layout=SimpleNamespace(data_parallel_size=1),
    )
    engine = SimpleNamespace(log_likelihoods=log_likelihoods)
    TaskEvaluation(setup, engine, quiet=True, position=position).run()
    assert made == [("tasks", 24 * 60)]
    assert len(used) == 3  # what was loaded, the samples, the end
    assert at == [("loads", "tasks"), ("computes", "evaluation"), ("asks", "tasks")]


@pytest.mark.usefixtures("alone")
def test_a_task_that_fails_does_not_end_the_training(training):
    def fails():
        msg = "the answer 'b' cannot be scored.\nLeave out its task, or change it."
        raise TaskError(msg)

    run = training("train.train_iters=3", "evaluation.tasks=[words]", "evaluation.tasks_interval=2")
    run = replace(run, events=(*run.events, TaskEvaluations(run, SimpleNamespace(run=fails))))
    assert run.run() == ""
    assert run.progress.iteration == 3
    warnings = [event for event in run.meter.logger.events if event.startswith("warning")]
    assert len(warnings) == 2  # after two iterations, and at the end
    assert all("the answer 'b' cannot be scored." in warning for warning in warnings)


def test_what_an_option_does_not_say_is_the_recipes(make):
    recipe = make("evaluation={tasks: [a], tasks_include_path: tasks, tasks_num_fewshot: 2, tasks_limit: 10}")
    kept = with_tasks(recipe, ["b"], include_path=None, num_fewshot=None, limit=None).evaluation
    assert kept == recipe.evaluation.model_copy(update={"tasks": ("b",)})
    given = with_tasks(recipe, ["b"], include_path="mine", num_fewshot=0, limit=3).evaluation
    assert (given.tasks_include_path, given.tasks_num_fewshot, given.tasks_limit) == ("mine", 0, 3)
