"""Values in error messages are short, whatever a file holds."""

from __future__ import annotations

from collections import OrderedDict

from pretrain.recipe.section import shown


def test_long_texts_are_cut_in_the_middle():
    assert len(shown("a" * 1000)) < 70


def test_numbers_of_any_length_are_told():
    assert shown(12) == "12"
    assert shown(10**5000) == "a number of 16610 bits"


def test_dicts_that_hold_one_another_end():
    nested: OrderedDict = OrderedDict()
    for _ in range(40):
        nested = OrderedDict(a=nested, b=nested)
    assert len(shown(nested)) < 100
