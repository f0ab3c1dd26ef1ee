"""The least number of devices, over made-up plans."""

from __future__ import annotations

from pretrain.recipe import make_recipe
from pretrain.tools.plan.search import search
from tools.plan.made_plan import RECIPE, plan, stage


def test_the_number_of_devices_that_is_tried_is_said(monkeypatch):
    said, planned = [], []

    def make_plan(recipe, device, *, devices, vocab_size):
        planned.append(devices)
        return plan() if devices >= 12 else plan(stage(0, 33))

    monkeypatch.setattr(search, "make_plan", make_plan)
    recipe = make_recipe(RECIPE, ("train.global_batch_size=48",))
    assert search.enough_devices(recipe, plan().device, 257, said.append) == 12
    assert said[:2] == ["it does not fit on 4 devices; looking for the number that is enough", "trying 192 devices"]
    assert len(said) == 1 + len(planned)
