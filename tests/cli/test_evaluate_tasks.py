"""`pretrain evaluate --tasks`: lm-evaluation-harness with our kernels and layout, on tasks whose data are local."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import sys

import pytest

from cli.trained import call, contents, settings, write_recipe
from pretrain.data.tokenizers.tokenizer import TokenizerFiles
from pretrain.launch.world import LOCALHOST, node_worlds
from pretrain.recipe import load_recipe
from pretrain.report.metrics import read_metrics
from pretrain.tools.corpus.build import build_tokens
from pretrain.training.run import ready

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'pretrain[eval]'")
pytestmark = [pytest.mark.usefixtures("forked_python", "no_network"), pytest.mark.xdist_group("evaluate tasks")]

WORDS = ["abc", "de", "fghi", "j"]
CHOICES = """
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/words.jsonl}}
output_type: multiple_choice
test_split: test
fewshot_split: test
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""
PAGES = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/pages.jsonl}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: page
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
metadata: {version: 1}
"""
ENDS = """
task: ends
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/words.jsonl}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{question}}"
doc_to_target: " {{choices[0]}}"
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]
metadata: {version: 1}
"""
GPT2 = ("model.max_position_embeddings=32",)
LLAMA = (
    *("model.position_embedding_type=rope", "model.normalization=RMSNorm", "model.activation=swiglu"),
    *("model.num_query_groups=2", "model.add_bias_linear=false", "model.max_position_embeddings=32"),
    "model.untie_embeddings_and_output_weights=true",
)


@pytest.fixture(scope="module")
def no_network(tmp_path_factory):
    """Keep datasets from asking a hub, and from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def run_dir(recipe):
    assert call(recipe, "--run-dir", recipe.parent / "run") == 0
    return recipe.parent / "run"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Write tasks with questions and pages, some of them longer than the model's sequences."""
    folder, draw = tmp_path_factory.mktemp("tasks"), random.Random(1)

    def text(length):
        return " ".join(draw.choices(WORDS, k=length))

    questions = [
        {"question": text(1 + 2 * number), "choices": [text(1 + choice) for choice in range(3)], "answer": number % 3}
        for number in range(8)
    ]
    pages = [{"page": text(3 + 12 * number)} for number in range(4)]
    for name, rows, task in (("words", questions, CHOICES), ("pages", pages, PAGES)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(task.replace("FOLDER", str(folder)))
    (folder / "ends.yaml").write_text(ENDS.replace("FOLDER", str(folder)))
    (folder / "long.jsonl").write_text(json.dumps({"question": "a", "choices": ["b" * 40, "c"], "answer": 0}) + "\n")
    long = CHOICES.replace("task: words", "task: long").replace("words.jsonl", "long.jsonl")
    (folder / "long.yaml").write_text(long.replace("FOLDER", str(folder)))
    return folder


@pytest.fixture
def evaluate(capfd, tasks):
    """Evaluate both tasks; return the results that are printed."""

    def run(*arguments, names="words,pages"):
        capfd.readouterr()
        assert call("evaluate", *arguments, "--tasks", names, "--include-path", tasks, "--json") == 0
        return json.loads(capfd.readouterr().out)

    return run


@pytest.mark.full
def test_results_are_printed_and_go_into_the_runs_metrics_and_report(run_dir, tasks, capfd):
    before = contents(run_dir / "checkpoints")
    arguments = ("--tasks", "words,pages", "--include-path", tasks, "--num-fewshot", 1, "--limit", 3)
    assert call("evaluate", run_dir, *arguments) == 0
    out, err = capfd.readouterr()
    assert f"written to {run_dir}/metrics.jsonl and {run_dir}/report.html" in err
    *others, words, pages = read_metrics(run_dir / "metrics.jsonl")
    assert all(line["kind"] != "task" for line in others)
    accuracy = words["metrics"]["acc,none"]
    error = words["metrics"]["acc_stderr,none"]
    assert words == {
        "kind": "task",
        "iteration": 3,
        "task": "words",
        "num_fewshot": 1,
        "limit": 3,
        "metrics": {"acc,none": accuracy, "acc_stderr,none": error},
    }
    assert (pages["task"], pages["num_fewshot"], [*pages["metrics"]]) == ("pages", 0, ["bits_per_byte,none"])
    assert f"|words|      1|none  |     1|acc          |↑  |{accuracy:.4f}|±  |{error:.4f}|" in out
    report = (run_dir / "report.html").read_text()
    cells = ["3", "1", "3", "acc", f"{accuracy:.4f}", f"{error:.4f}"]
    assert '<th scope="row">words</th>' + "".join(f"<td>{cell}</td>" for cell in cells) in report
    assert contents(run_dir / "checkpoints") == before


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize(
    "layout",
    [
        settings("parallel.tensor_model_parallel_size=2"),
        settings("parallel.pipeline_model_parallel_size=2"),
        settings("parallel.context_parallel_size=2"),
        ["--nproc", 2],
        ["--nproc", 2, *settings("engine={name: deepspeed, zero: {stage: 3}}")],
        settings("train.micro_batch_size=4"),
    ],
    ids=["TP", "PP", "CP", "DP", "ZeRO-3", "other batch"],
)
def test_every_layout_gives_the_results_of_one_process(layout, evaluate, recipe, run_dir):
    expected, found = evaluate(recipe, "--load", run_dir), evaluate(recipe, "--load", run_dir, *layout)
    assert found["results"]["words"] == expected["results"]["words"]
    key = "bits_per_byte,none"
    assert found["results"]["pages"][key] == pytest.approx(expected["results"]["pages"][key], rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["GPT-2", "Llama"])
def test_each_request_has_the_likelihood_of_the_exported_model_in_lm_evals_own_class(model, recipe, tmp_path):
    hugging_face = pytest.importorskip("lm_eval.models.huggingface", reason="lm_eval's hf class needs accelerate")
    from lm_eval.api.instance import Instance

    file = tmp_path / "tokenizer.json"
    words = recipe.parent / "text.jsonl"
    assert call("tokenizer", "train", words, "--vocab-size", 280, "--output", file) == 0
    of_file = (f"tokenizer={{type: huggingface, file: {file}}}", f"data.path={tmp_path / 'text'}", *model)
    build_tokens([words], tmp_path / "text", TokenizerFiles(type="huggingface", file=str(file)), workers=1)
    assert call(recipe, "--run-dir", tmp_path / "run", *settings(*of_file)) == 0
    assert call("checkpoint", "convert", tmp_path / "run", tmp_path / "hf", "--to", "huggingface") == 0

    draw = random.Random(2)
    pairs = [(" ".join(draw.choices(WORDS, k=n)), " " + " ".join(draw.choices(WORDS, k=1 + n % 4))) for n in range(60)]
    pairs += [
        ("", "abc de"),
        ("", "j"),
        ("<|endoftext|>", "abc"),
        ("abc ", "de"),
        ("", "<|endoftext|>abc"),
    ]
    pairs += [("x" * 300, "y" * 30)]  # characters that the tokenizer has no pairs of: 31 tokens of 32
    texts = ["", "abc", *(" ".join(draw.choices(WORDS, k=n)) for n in (10, 40, 150)), "xyz" * 60]

    def likelihoods(asked):
        def instances(kind, arguments):
            return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]

        return (
            asked.loglikelihood(instances("loglikelihood", pairs)),
            asked.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in texts])),
        )

    theirs = likelihoods(hugging_face.HFLM(pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32"))
    ours = on_our_model(tmp_path / "run", likelihoods)
    for (likelihood, greedy), (expected, is_greedy) in zip(ours[0], theirs[0], strict=True):
        assert likelihood == pytest.approx(expected, abs=1e-4)
        assert greedy == is_greedy
    assert ours[1] == pytest.approx(theirs[1], rel=1e-6, abs=1e-4)
    assert len({round(likelihood, 3) for likelihood, _ in ours[0]}) > 50  # the model has learned something of each


def on_our_model(run_dir, ask):
    """Call `ask` with a run's model as lm-eval is given it, in this process."""
    from pretrain.training.harness import HarnessModel
    from pretrain.training.trained_model import trained_model

    recipe, (alone,) = load_recipe(run_dir / "recipe.yml"), node_worlds([1], 0, LOCALHOST, 0)
    with trained_model(recipe, ready(recipe, "cpu"), str(run_dir / "checkpoints"), alone) as model:
        score = model.engine.log_likelihoods
        return ask(HarnessModel(model.setup.tokenizer, recipe.model.seq_length, score, at_once=8, quiet=True))


@pytest.mark.full
def test_a_training_evaluates_tasks_and_its_numbers_stay_what_they_are(recipe, tasks, tmp_path, capfd):
    drops = ("model.hidden_dropout=0.1", "train.train_iters=4", "evaluation.interval=2")
    chosen = (f"evaluation.tasks_include_path={tasks}", "evaluation.tasks_interval=2", "evaluation.tasks_limit=2")
    assert call(recipe, "--run-dir", tmp_path / "without", *settings(*drops)) == 0
    capfd.readouterr()
    assert call(recipe, "--run-dir", tmp_path / "with", *settings(*drops, "evaluation.tasks=[words]", *chosen)) == 0
    out = capfd.readouterr().out

    def losses(run):
        lines = read_metrics(tmp_path / run / "metrics.jsonl")
        keys = ("iteration", "lm_loss", "grad_norm")
        return [[line.get(key) for key in keys] for line in lines if line["kind"] != "task"]

    assert losses("with") == losses("without")
    found = [line for line in read_metrics(tmp_path / "with" / "metrics.jsonl") if line["kind"] == "task"]
    assert [(line["iteration"], line["task"], line["limit"]) for line in found] == [(2, "words", 2), (4, "words", 2)]
    accuracy, error = (found[-1]["metrics"][key] for key in ("acc,none", "acc_stderr,none"))
    assert f"words at iteration 4/4 | acc {accuracy:.4f} +- {error:.4f}" in out
    again = ("--run-dir", tmp_path / "with", "--resume", *settings(*drops, "evaluation.tasks=[words]", *chosen))
    assert call(recipe, *again) == 0
    assert [line for line in read_metrics(tmp_path / "with" / "metrics.jsonl") if line["kind"] == "task"] == found
    assert call(recipe, *again, *settings("evaluation.tasks_limit=null")) == 0
    last = read_metrics(tmp_path / "with" / "metrics.jsonl")[-1]
    assert (last["iteration"], last["task"], last["limit"]) == (4, "words", None)


@pytest.fixture
def no_pool(monkeypatch):
    """Refuse a pool of processes, which never ends where they inherit the handlers of a training."""

    def refused(*_arguments, **_options):
        raise AssertionError

    monkeypatch.setattr(multiprocessing, "Pool", refused)


@pytest.mark.full
@pytest.mark.usefixtures("no_pool")
def test_a_metric_whose_error_is_resampled_leaves_only_its_numbers_in_the_log(recipe, run_dir, tasks, tmp_path, capfd):
    chosen = ("evaluation.tasks=[ends]", f"evaluation.tasks_include_path={tasks}")
    capfd.readouterr()
    assert call(recipe, "--run-dir", tmp_path / "run", *settings(*chosen)) == 0
    out, err = capfd.readouterr()
    found = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["metrics"]
    assert found["perplexity_stderr,none"] > 0
    assert f"ends at iteration 3/3 | perplexity {found['perplexity,none']:.4f} +- " in out
    assert "bootstrapping" not in out + err
    assert "%|" not in out  # lm-eval's bars are written to stderr
    assert "DISABLE_MULTIPROC" not in os.environ


@pytest.mark.full
@pytest.mark.usefixtures("no_pool")
def test_json_is_one_object_whatever_lm_eval_prints(evaluate, run_dir):
    assert evaluate(run_dir, names="ends")["results"]["ends"]["perplexity_stderr,none"] > 0


@pytest.mark.full
def test_options_that_are_left_out_are_the_recipes(run_dir, tasks, capfd):
    chosen = (f"evaluation.tasks_include_path={tasks}", "evaluation.tasks_limit=2", "evaluation.tasks_num_fewshot=1")
    capfd.readouterr()
    assert call("evaluate", run_dir, "--tasks", "words", "--json", *settings("evaluation.tasks=[pages]", *chosen)) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["n-shot"], found["n-samples"]["words"]["effective"]) == ({"words": 1}, 2)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_task_that_fails_is_a_warning_of_a_training(ranks, recipe, tasks, tmp_path, capfd):
    chosen = (f"evaluation.tasks_include_path={tasks}", "evaluation.tasks_interval=2", "evaluation.tasks=[words,long]")
    capfd.readouterr()
    assert call(recipe, "--nproc", ranks, "--run-dir", tmp_path / "run", *settings(*chosen)) == 0
    out = capfd.readouterr().out
    warning = "warning: tasks are not evaluated: the answer ' bbb"
    assert out.count(warning) == 2
    assert "The training continues." in out
    kinds = [line["kind"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert "task" not in kinds
    assert (tmp_path / "run" / "checkpoints" / "iter_0000003").is_dir()


@pytest.mark.full
def test_the_exported_models_card_has_its_recipe_data_losses_and_tasks(recipe, tasks, tmp_path):
    chosen = ("evaluation.tasks=[words]", f"evaluation.tasks_include_path={tasks}", "checkpoint.save_interval=2")
    assert call(recipe, "--run-dir", tmp_path / "run", *settings(*chosen)) == 0
    assert call("checkpoint", "convert", tmp_path / "run", tmp_path / "hf", "--to", "huggingface") == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    valid = next(line for line in records if line.get("split") == "valid")
    accuracy = next(line for line in records if line["kind"] == "task")["metrics"]["acc,none"]
    assert f"| validation | 3 | {valid['lm_loss']:.4f} | {valid['ppl']:.4g} |" in card
    assert f"| words | 0 | acc | {accuracy:.4f} |" in card
    assert f"| `{recipe.parent / 'text'}` | 1 | " in card
    assert "| tokens seen | 384, 32 a sequence |" in card
    assert (tmp_path / "run" / "recipe.yml").read_text().partition("logging:")[0] in card
    early = tmp_path / "run" / "checkpoints" / "iter_0000002"
    assert call("checkpoint", "convert", early, tmp_path / "early", "--to", "huggingface") == 0
    card = (tmp_path / "early" / "README.md").read_text()
    assert "| iteration | 2 |" in card
    assert "Losses: not known." in card  # of later iterations
    shutil.copytree(early, tmp_path / "alone")
    assert call("checkpoint", "convert", tmp_path / "alone", tmp_path / "plain", "--to", "huggingface") == 0
    card = (tmp_path / "plain" / "README.md").read_text()
    assert "| run | not known |" in card
    assert "| iteration | 2 |" in card
    assert "a checkpoint without its run" in card


@pytest.mark.full
def test_mistakes_are_errors_of_two_lines(run_dir, tasks, tmp_path, capfd):
    def task(name, *replacements):
        text = CHOICES.replace("FOLDER", str(tasks)).replace("task: words", f"task: {name}")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{name}.yaml").write_text(text)

    task("words")
    task("away", ("/words.jsonl", "/gone.jsonl"))
    task("hub", ("dataset_path: json", "dataset_path: nobody/nothing"))
    task("writes", ("output_type: multiple_choice", "output_type: generate_until"), ("doc_to_choice: choices\n", ""))
    task("odd", ("{{question}}", "{{1 // (answer - 1)}}"))
    task("long", ("/words.jsonl", "/long.jsonl"))
    mistakes = {
        "wards": "'wards' is no task of lm-evaluation-harness. Did you mean 'words'?",
        "away": "task away cannot be loaded: FileNotFoundError",
        "hub": "task hub cannot be loaded: ",
        "writes": "task writes lets the model write text (generate_until)",
        "odd": "a task fails in lm-eval: ZeroDivisionError",
        "long": "cannot be scored: it has 41 tokens, and model.seq_length is 32.",
    }
    for name, message in mistakes.items():
        assert call("evaluate", run_dir, "--tasks", name, "--include-path", tmp_path) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert message in err
        assert "Traceback" not in err


def test_a_folder_of_tasks_that_is_not_there_is_named(run_dir, tmp_path, capfd):
    assert call("evaluate", run_dir, "--tasks", "words", "--include-path", tmp_path / "gone") == 2
    assert f"--include-path {tmp_path}/gone (evaluation.tasks_include_path) is no folder.\n" in capfd.readouterr().err


def test_options_without_effect_and_a_missing_extra_are_errors_of_two_lines(run_dir, capfd, monkeypatch):
    mistakes = {
        ("--limit", 3): "--limit has no effect without --tasks.",
        ("--tasks", "words", "--iters", 3): "--iters has no effect with --tasks.",
        ("--tasks", " , "): "--tasks names no task.",
    }
    for arguments, message in mistakes.items():
        assert call("evaluate", run_dir, *arguments) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert message in err
        assert len(err.splitlines()) == 2, err
    monkeypatch.delitem(sys.modules, "pretrain.training.harness", raising=False)
    monkeypatch.delattr("pretrain.training.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert call("evaluate", run_dir, "--tasks", "words") == 2
    assert capfd.readouterr().err == (
        "tasks are evaluated by lm-eval, which is not installed (lm_eval).\nInstall it: pip install 'pretrain[eval]'\n"
    )
