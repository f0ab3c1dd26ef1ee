"""Which settings of a model its weights depend on."""

from __future__ import annotations

from pretrain.checkpoint.identity import structure
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.model import ModelSection
from recipe.smallest import SMALLEST

OF_THE_TRAINING = {
    *("seq_length", "hidden_dropout", "attention_dropout"),
    *("init_method", "init_method_std", "output_layer_init_method"),
    *("apply_query_key_layer_scaling", "attention_softmax_in_fp32", "make_vocab_size_divisible_by"),
}


def test_every_setting_is_part_of_the_structure_but_those_of_the_training():
    found = structure(make_recipe(SMALLEST).model)
    assert set(ModelSection.model_fields) - set(found) == OF_THE_TRAINING
    assert set(found) <= set(ModelSection.model_fields)
