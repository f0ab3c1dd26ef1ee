"""Log lines of rank 0 at the start of a run."""

from __future__ import annotations

import json
from types import SimpleNamespace

from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.recipe import lay_out, make_recipe
from pretrain.report.environment_file import Begin
from pretrain.training.reporting.run_output import finish, log_head, write
from recipe.smallest import SMALLEST

TABLE = KernelTable(backend="cpu", provider="pretrain", rows=())


def setup(recipe, ranks=1):
    """Return what a rank has of such a recipe."""
    return SimpleNamespace(
        recipe=recipe,
        plugins=SimpleNamespace(
            backend=SimpleNamespace(name="cpu", describe=dict), provider="pretrain", notices=["a notice of a plugin"]
        ),
        layout=lay_out(recipe, ranks),
        tokenizer=SimpleNamespace(vocab_size=256),
        padded_vocab_size=256,
    )


def test_notices_of_a_deepspeed_file_are_logged(tmp_path):
    (tmp_path / "ds.json").write_text('{"steps_per_print": 10}')
    blend = {"blend": [{"weight": 1, "path": "corpus"}, {"weight": 1, "path": "other"}]}
    engine = {"name": "deepspeed", "deepspeed_config": str(tmp_path / "ds.json")}
    recipe = make_recipe({**SMALLEST, "data": blend, "engine": engine})
    said = []
    log_head(SimpleNamespace(note=said.append), setup(recipe), TABLE, tmp_path, "resumed")
    assert said[0] == "a notice of a plugin"
    assert any("; 1 rank: tensor 1 x pipeline 1 x data 1" in line for line in said)
    assert said[-2:] == [*recipe.notices, "resumed"]
    assert "steps_per_print: 10 is not used" in said[-2]


def started(run_dir, after, *overrides, devices=("card",) * 2):
    """Write the files of a start after an iteration; return after which one the run is as the files say."""
    recipe = make_recipe(SMALLEST, overrides)
    write(setup(recipe, ranks=len(devices)), TABLE, run_dir, devices, Begin(0.0, after))
    return json.loads((run_dir / "environment.json").read_text())["started_after"]


def test_a_run_that_goes_on_as_it_was_can_be_measured_from_where_it_began(tmp_path):
    """A finished run that is started again logs nothing more."""
    assert started(tmp_path, 0) == started(tmp_path, 40) == 0
    assert started(tmp_path, 40, "train.seed=5") == started(tmp_path, 60, "train.seed=5") == 40
    assert started(tmp_path, 20, "train.seed=5") == 20  # resumed at an older checkpoint
    assert started(tmp_path, 40, "train.seed=5", devices=("card",) * 4) == 40
    (tmp_path / "environment.json").write_text("torn")
    assert started(tmp_path, 50, "train.seed=5", devices=("card",) * 4) == 50


def test_a_report_that_cannot_be_written_does_not_fail_a_run_that_is_complete(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("not a record\n\n")
    said = []
    finish(SimpleNamespace(note=said.append), tmp_path, "", 40)
    assert said[0].startswith("warning: ")
    assert said[0].endswith(f"Write it later: pretrain report {tmp_path}")
    assert said[1] == "done: 40 iterations"


def test_a_run_directory_that_cannot_be_looked_at_does_not_fail_one_that_is_complete(tmp_path):
    """Rank 0 alone looks, and the others wait for it in a collective."""
    said = []
    finish(SimpleNamespace(note=said.append), tmp_path / "gone", "", 40)
    assert said[0].startswith("warning: [Errno 2] No such file or directory")
