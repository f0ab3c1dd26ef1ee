"""`pretrain plan`: the command over plans that are made by hand, and one real plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import pretrain.tools.plan.plan
from pretrain.errors import BackendError, RecipeError
from pretrain.launch.placement import least_memory
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.command import MemorySize, command
from pretrain.tools.plan.device import DeviceOptions
from tools.plan.made_plan import GIB, RECIPE, plan


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text(json.dumps(RECIPE))
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """Arguments of `make_plan`, which returns a plan of 12 GiB."""
    calls = []

    def make_plan(recipe, device, **options):
        calls.append({"recipe": recipe, "device": device, **options})
        return plan(notices=["from the trace"])

    monkeypatch.setattr(pretrain.tools.plan.plan, "make_plan", make_plan)
    monkeypatch.setattr("pretrain.tools.plan.device.find_device", lambda recipe, wanted, ranks: (wanted, ranks))
    return calls


def call(*arguments):
    return CliRunner().invoke(command, ["tiny.yml", *arguments])


def test_the_plan_is_a_screen(asked):
    result = call()
    assert result.exit_code == 0, result.exception
    assert "fits: 4.00 GiB to spare on stage 0, the fullest" in result.output
    assert "from the trace" in result.output
    assert asked[0]["recipe"] == load_recipe("tiny.yml")
    assert asked[0]["device"] == (DeviceOptions(), 4)
    assert (asked[0]["devices"], asked[0]["vocab_size"]) == (None, 257)


def test_every_option_reaches_the_plan(asked):
    options = ("--backend", "acme", "--device", "Acme 9", "--devices", "8", "--memory", "40GB")
    network = ("--network", "12.5", "--link", "64", "--devices-per-node", "4", "--vocab-size", "250880")
    call(*options, *network, "--set", "model.num_layers=4")
    assert asked[0]["recipe"].model.num_layers == 4
    wanted = DeviceOptions(
        backend="acme",
        name="Acme 9",
        memory=40 * GIB,
        node_bandwidth=12.5e9,
        link_bandwidth=64e9,
        devices_per_node=4,
    )
    assert asked[0]["device"] == (wanted, 8)
    assert (asked[0]["devices"], asked[0]["vocab_size"]) == (8, 250880)


def test_a_given_vocabulary_needs_no_tokenizer_file(asked):
    absent = ("--set", "tokenizer={type: huggingface, file: absent.json}")
    assert "absent.json" not in call("--vocab-size", "1000", *absent).output
    assert asked[0]["vocab_size"] == 1000


def test_no_tokenizer_file_is_needed_and_the_assumed_size_is_said(asked):
    result = call("--set", "tokenizer={type: huggingface, file: absent.json}")
    assert asked[0]["vocab_size"] == 50257
    assert (
        "tokenizer: absent.json not found; counting with 50257 entries; --vocab-size sets another number"
        in " ".join(result.output.split())
    )


def test_json_is_one_object_with_the_notices(asked):
    found = json.loads(call("--json", "--set", "tokenizer={type: huggingface, file: absent.json}").output)
    assert found["fits"] is True
    assert found["notices"] == [
        "tokenizer: absent.json not found; counting with 50257 entries; --vocab-size sets another number",
        "from the trace",
    ]


def test_the_table_of_modules_follows_on_request(asked):
    assert "linear_fc1" not in call().output
    assert "linear_fc1" in call("--layers").output


def test_the_page_is_written_beside_the_screen_and_json_stays_clean(asked, folder):
    assert "page: plan.html" in call("--html", "plan.html").output
    assert (folder / "plan.html").read_text().startswith("<!doctype html>")
    assert json.loads(call("--html", "plan.html", "--json").stdout)["fits"] is True


def test_colours_are_for_terminals_alone(asked):
    assert "\x1b[" not in call().output
    assert "\x1b[34mWWWW\x1b[0m" in CliRunner().invoke(command, ["tiny.yml"], color=True).output


class TestSearch:
    @pytest.fixture(autouse=True)
    def searched(self, monkeypatch):
        calls = []

        def search(recipe, device, devices, vocab_size, say):
            calls.append((recipe.source, device, devices, vocab_size))
            say("search: planning layout 1 of 5")
            return "the best five"

        module = types.SimpleNamespace(search=search, search_text=str, to_json=lambda result: {"layouts": [result]})
        monkeypatch.setitem(sys.modules, "pretrain.tools.plan.search.search", module)
        monkeypatch.setattr("pretrain.tools.plan.device.find_device", lambda recipe, wanted, ranks: (wanted, ranks))
        return calls

    def test_it_replaces_the_plan(self, asked, searched):
        result = call("--search", "--devices", "16", "--memory", "32GB")
        assert (result.stdout, result.stderr) == ("the best five\n", "search: planning layout 1 of 5\n")
        device = DeviceOptions(memory=32 * GIB), 16
        assert searched == [("tiny.yml", device, 16, 257)]
        assert asked == []

    def test_without_a_number_of_devices_it_is_one_replica(self, searched):
        call("--search")
        assert searched[0][2] == 4

    def test_json_has_the_notices_too(self):
        assert json.loads(call("--search", "--json").stdout) == {"layouts": ["the best five"], "notices": []}

    @pytest.mark.parametrize("other", [("--layers",), ("--html", "plan.html")])
    def test_it_has_no_table_and_no_page(self, other, searched):
        result = call("--search", *other)
        assert result.exit_code == 2
        assert "describe one layout, but --search finds several" in result.output
        assert searched == []


def test_mistakes_in_options_and_recipe_come_before_anything_is_built(asked):
    assert isinstance(call("--set", "model.num_layer=2").exception, RecipeError)
    assert call("--devices", "0").exit_code == 2
    assert call("--memory", "much").exit_code == 2
    assert call("--network", "0").exit_code == 2
    assert asked == []


@pytest.mark.full
def test_a_mistake_in_the_recipe_needs_no_torch():
    check = (
        "import sys\nfrom pretrain.tools.plan.command import command\nfrom pretrain.errors import RecipeError\n"
        "try:\n    command(['tiny.yml', '--set', 'model.num_layer=2'], standalone_mode=False)\n"
        "except RecipeError:\n    sys.exit('torch' in sys.modules)\nsys.exit('no error')\n"
    )
    done = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_device_is_said_to_be_unknown():
    failure = call("--device", "Nonsense 5000").exception
    assert isinstance(failure, BackendError)
    assert str(failure).startswith("no installed backend knows a device 'Nonsense 5000'.")


@pytest.mark.full
def test_a_recipe_is_planned_on_this_machine_without_its_files(folder):
    """The engine is built and steps, in a process whose only thread is its own."""
    options = ["--set", "parallel.pipeline_model_parallel_size=1", "--set", "model.num_layers=1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", "plan", "tiny.yml", *options],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (stage,) = found["stages"]
    assert (found["backend"], found["fits"], stage["rank"], stage["layers"]) == ("cpu", True, 0, "1")
    assert stage["peak_bytes"] == sum(stage["parts"].values())
    assert stage["parts"]["weights"] >= 4 * stage["parameters"]
    recipe = load_recipe("tiny.yml", options[1:4:2])
    states = sum(stage["parts"][part] for part in ("weights", "gradients", "optimizer"))
    assert 0 < least_memory(recipe, lay_out(recipe, 1)) < states
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yml"]


READ = MemorySize()


def read(text):
    return READ.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 2**30),
        ("80GiB", 80 * 2**30),
        ("80 gb", 80 * 2**30),
        ("80g", 80 * 2**30),
        ("81920MB", 80 * 2**30),
        ("32768MiB", 32 * 2**30),
        ("79.25GB", 79.25 * 2**30),
        ("85899345920", 80 * 2**30),
        ("85899345920B", 80 * 2**30),
    ],
)
def test_gb_are_gib_as_makers_of_devices_name_them(text, size):
    assert read(text) == size


@pytest.mark.parametrize("text", ["", "much", "40TBs", "-40GB", "4e10", "40GB40", "GB", "nan", "1,5GB"])
def test_anything_else_is_an_error_with_what_is_allowed(text):
    with pytest.raises(click.BadParameter, match="Allowed: 40GB, 40GiB, 32768MB, or bytes"):
        read(text)


@pytest.mark.parametrize("text", ["40", "80", "0GB"])
def test_a_few_bytes_were_meant_in_gb(text):
    with pytest.raises(click.BadParameter, match="less than any device has"):
        read(text)


@given(st.integers(2**20, 2**40))
def test_bytes_are_themselves(size):
    assert read(str(size)) == size


def test_what_a_failure_costs_is_shown_where_an_option_says_something_of_it(asked):
    assert "checkpoint:" not in call().output
    shown = call("--storage", "10", "--mtbf", "24", "--start", "60", "--json")
    costs = json.loads(shown.stdout)["costs"]
    assert (costs["storage_bandwidth"], costs["mtbf_seconds"], costs["start_seconds"]) == (1e10, 86400, 60)
    assert "give --mtbf and --start for the share of useful time" in " ".join(call("--storage", "10").output.split())


def test_a_search_has_no_costs_of_failures(asked):
    result = call("--search", "--mtbf", "24")
    assert result.exit_code == 2
    assert "--storage, --mtbf and --start describe one layout" in result.output
