"""Trainings of which it is known whether they fit: GPT-3 on 64 GPUs of 80 GB, and GPT-NeoX on eight of 40 GB.

The scripts that the recipes follow say it: GPT-3 175B was trained in this layout; the tutorial of GPT-NeoX-20B runs out
of memory with its 44 layers, and says to try 22.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.plan.search.estimates import state_bytes
from tools.plan.published import throughput
from tools.plan.published.activations import QUADRATIC
from tools.plan.published.own_process import answer
from tools.plan.search.test_choices import CHOICE, DEEPSPEED, RECIPE

ROOT = Path(__file__).parents[4]
A100_40, A100_80 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"


@pytest.mark.full
@pytest.mark.parametrize(
    ("recipe", "device", "devices", "overrides", "fits"),
    [
        ("gpt3", A100_80, 64, [], True),
        ("neox20b", A100_40, 8, [], False),
        ("neox20b", A100_40, 8, ["model.num_layers=22", "parallel.pipeline_layers=[5, 6, 6, 5]"], True),
    ],
    ids=["175B on 64 x 80 GB", "44 layers on 8 x 40 GB", "22 layers on 8 x 40 GB"],
)
def test_known_trainings(recipe, device, devices, overrides, fits):
    arguments = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "pretrain.cli.main", "plan", str(ROOT / "recipes" / f"{recipe}.yml"), "--json"]
    command += ["--device", device, "--devices", str(devices), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout)["fits"] is fits


MASKS = 2
RANKS = 8


@pytest.mark.full
def test_every_row_of_the_table():
    """Rows: none, tensor, tensor + sequence; these two with selective recompute; full recompute."""
    rows = {
        "1": (34 + QUADRATIC, QUADRATIC, MASKS, 2),
        "8": (10 + 24 / RANKS + QUADRATIC / RANKS, QUADRATIC / RANKS, MASKS, 2),
        "8 sequence": (34 / RANKS + QUADRATIC / RANKS, QUADRATIC / RANKS, MASKS / RANKS, 2 / RANKS),
    }
    found = answer("tools.plan.published.activations")
    for name, (formula, scores, masks, full) in rows.items():
        kept, by_attention, entering = found[name]
        assert kept == pytest.approx(formula - masks, abs=0.01), name
        assert kept - by_attention == pytest.approx(formula - scores - masks, abs=0.01), name
        assert entering == full


NEAR = 0.2
TABLE = throughput.table()


@pytest.mark.parametrize("row", TABLE["readme-2022"]["rows"], ids=lambda row: row["name"])
def test_times_from_memory_are_the_published_utilization(row):
    source = TABLE["readme-2022"]
    utilization = throughput.model_flops(source, row) / row["seconds"] / throughput.PEAKS[source["device"]]
    assert utilization == pytest.approx(row["mfu"], abs=0.002)


@pytest.mark.full
def test_175b_on_a100_is_within_a_fifth():
    assert abs(answer("tools.plan.published.throughput", "readme-2022", "175B")["175B"]) < NEAR


@pytest.mark.full
@pytest.mark.parametrize("source", TABLE)
def test_every_row_is_within_a_fifth_or_has_a_reason(source):
    rows = TABLE[source]["rows"]
    found = answer("tools.plan.published.throughput", source, *(row["name"] for row in rows))
    assert {name for name, deviation in found.items() if abs(deviation) >= NEAR} == {
        row["name"] for row in rows if "why" in row
    }


PSI, REPLICAS = 7.5e9, 64


@pytest.mark.parametrize(
    ("stage", "formula", "gigabytes"),
    [
        (0, 16 * PSI, 120),
        (1, 4 * PSI + 12 * PSI / REPLICAS, 31.4),
        (2, 2 * PSI + 14 * PSI / REPLICAS, 16.6),
        (3, 16 * PSI / REPLICAS, 1.9),
    ],
)
def test_state_of_a_rank_is_that_of_the_paper(stage, formula, gigabytes):
    """The figure's numbers, rounded as there; the formulas are those of its section 5."""
    recipe = make_recipe(RECIPE, (*DEEPSPEED, "precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"))
    state, _ = state_bytes(recipe, replace(CHOICE, zero=stage, data=REPLICAS), round(PSI))
    assert state == pytest.approx(formula, rel=1e-9)
    assert round(state / 1e9, 1) == gigabytes


README = (ROOT / "README.md").read_text()
COMMANDS = [re.sub(r"\s+", " ", command) for command in re.findall(r"`(pretrain plan [^`]*--[^`]*)`", README)]


def test_there_are_two():
    assert [command.split()[2] for command in COMMANDS] == ["recipes/gpt3.yml", "recipes/neox20b.yml"]


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[2])
def test_the_readme_shows_what_a_command_prints(command):
    """Without the assumptions, where tokenizer files are absent."""
    arguments = shlex.split(command)[1:]
    ended = subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    printed = ended.stdout.partition("\nassumed:")[0].strip()
    assert f"```\n{printed}\n```" in README
