"""The card of an exported model, which is meant for everybody."""

from __future__ import annotations

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


def test_the_recipe_in_a_card_is_without_the_passwords_of_trackers(tmp_path):
    (tmp_path / "recipe.yml").write_text(RECIPE)
    weights = SimpleNamespace(
        path=tmp_path,
        format="pretrain",
        model=ModelSection(
            num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=32, max_position_embeddings=32
        ),
        tokens=257,
        iteration=3,
        consumed_samples=12,
    )
    card = model_card(weights, "GPT2LMHeadModel", 1000, "float32", has_tokenizer=True).decode()
    assert "hunter2" not in card
    shown = yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])
    assert shown == {name: keys for name, keys in yaml.safe_load(RECIPE).items() if name != "logging"}
