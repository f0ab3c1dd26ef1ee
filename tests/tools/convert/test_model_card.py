"""The card of an exported model, which is meant for everybody."""

from __future__ import annotations

import json
from types import SimpleNamespace

import yaml

from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.model_card import model_card

RECIPE = """
model: {num_layers: 2, seq_length: 32}
data: {path: corpus}
logging:
  loggers: [mlflow, theirs]
  mlflow_tracking_uri: postgresql://me:hunter2@tracker/mlflow
  logger_options: {theirs: {key: hunter2}}
optimizer: {lr: 0.001}
"""


def card(folder):
    (folder / "recipe.yml").write_text(RECIPE)
    weights = SimpleNamespace(
        path=folder,
        format="pretrain",
        model=ModelSection(
            num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=32, max_position_embeddings=32
        ),
        tokens=257,
        iteration=3,
        consumed_samples=12,
    )
    return model_card(weights, "GPT2LMHeadModel", 1000, "float32", has_tokenizer=True).decode()


def test_the_recipe_in_a_card_is_without_the_passwords_of_trackers(tmp_path):
    text = card(tmp_path)
    assert "hunter2" not in text
    shown = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert shown == {name: keys for name, keys in yaml.safe_load(RECIPE).items() if name != "logging"}


def test_a_task_has_its_results_on_all_documents_although_some_were_looked_at_later(tmp_path):
    record = {"kind": "task", "num_fewshot": 0}
    results = [("words", 1, None, 0.1), ("words", 3, None, 0.25), ("words", 3, 10, 0.5), ("parts", 3, 1000, 0.75)]
    lines = [
        json.dumps({**record, "task": task, "iteration": iteration, "limit": limit, "metrics": {"acc,none": value}})
        for task, iteration, limit, value in results
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rows = [line for line in card(tmp_path).splitlines() if line.startswith(("| words", "| parts"))]
    assert [row.split("|")[1].strip() for row in rows] == ["words", "parts, first 1,000"]
    assert ["0.2500" in rows[0], "0.7500" in rows[1]] == [True, True]
