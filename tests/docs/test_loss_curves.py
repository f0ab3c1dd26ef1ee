"""The picture of the loss curves is that of the losses that are kept, and these agree."""

from __future__ import annotations

import json
import shlex

import pytest

from structure.documents import called
from structure.sources import ROOT

FOLDER = ROOT / "docs" / "pictures"
KEPT = json.loads((FOLDER / "loss_curves.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(ROOT)


def test_the_picture_is_drawn_from_the_losses():
    import loss_curves

    assert (FOLDER / "loss_curves.svg").read_text(encoding="utf-8") == loss_curves.draw(KEPT["losses"])


def test_every_layout_was_trained_by_the_command_of_today():
    import train_layouts

    assert list(KEPT["losses"]) == list(train_layouts.LAYOUTS)
    assert KEPT["commands"] == {
        name: shlex.join(["pretrain", *train_layouts.command(name)]) for name in train_layouts.LAYOUTS
    }
    for command in KEPT["commands"].values():
        assert called(shlex.split(command)[1:]).params["nproc"] in {1, 2}


def test_all_layouts_have_the_losses_of_one_process():
    for losses in KEPT["losses"].values():
        assert losses == pytest.approx(KEPT["losses"]["one process"], rel=2e-7, abs=0)
        assert len(losses) == 100
        assert losses[0] > 9 > 6 > losses[-1]
