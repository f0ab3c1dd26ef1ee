"""Checks of both sides before the first is recorded."""

from pathlib import Path

import pytest

from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError, CheckpointError, RecipeError, RunError
from pretrain.plugins.backend import Unavailable
from pretrain.tools.align.run import require_ready, require_writable
from pretrain.tools.align.side import Side

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yml"
FIRST = Side(recipe=QUICKSTART)


def of(*overrides, **changes):
    return Side(recipe=QUICKSTART, overrides=overrides, **changes)


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        (of("parallel.tensor_model_parallel_size=5"), RecipeError, "tensor_model_parallel_size"),
        (of(nproc=7), RecipeError, "7"),
        (of(backend="none_such"), BackendError, "'none_such' is not installed"),
        (of(checkpoint=Path("/none/such")), CheckpointError, "/none/such"),
        (of("checkpoint={load: /none/such}"), RunError, "--set-against checkpoint.load would have no effect"),
        (of("model.num_layers=3"), RunError, "train different things: model.num_layers"),
        (of("model.num_layers=3", "x.y=1", python=Path("python")), RunError, "different things: model.num_layers"),
    ],
)
def test_a_mistake_of_the_second_side_is_found(second, error, message):
    require_ready([FIRST], None)

    with pytest.raises(error, match=message):
        require_ready([FIRST, second], None)


def test_a_backend_without_a_device_is_found(monkeypatch):
    monkeypatch.setattr(CpuBackend, "availability", lambda _self: Unavailable("it is away"))

    with pytest.raises(BackendError, match="no usable device: it is away"):
        require_ready([FIRST], None)


def test_the_weights_of_the_recipe_are_those_of_the_first_side():
    with pytest.raises(CheckpointError, match="/none/such"):
        require_ready([of("checkpoint.load=/none/such")] * 2, None)


def test_a_page_that_cannot_be_written_is_found(tmp_path):
    require_writable(tmp_path / "new" / "page.html")
    (tmp_path / "file").touch()

    with pytest.raises(RunError, match=r"file is a file, not a folder.*\nName another"):
        require_writable(tmp_path / "file" / "page.html")
