"""The plan as plain text: what a user reads before renting devices."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from click import style, unstyle
from hypothesis import given
from hypothesis import strategies as st

from pretrain.plugins.backend import Figures
from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.tools.plan.device import Efficiencies
from pretrain.tools.plan.plan_views import COLOURS, LETTERS, bar, module_text, nested, plan_text
from pretrain.tools.plan.stage_plan import PARTS, Costs, Operation
from pretrain.tools.plan.step_time import Range, figure
from pretrain.tools.plan.wording import gib, span
from tools.plan.made_plan import GIB, ROWS, TIME, kernel, plan, recipe, stage


def text_of(*stages, **changes):
    return unstyle(plan_text(plan(*stages, **changes)))


LINES = text_of().splitlines()


def words(text):
    return " ".join(text.split())


def test_the_head_says_what_is_planned_and_what_was_traced():
    assert LINES[:4] == [
        "tiny.yml on 8 x Acme 9, 16 GiB",
        "layout: tensor 1 x pipeline 4 x data 2; 8 micro batches of 1 a step",
        "kernels: attention flash, linear plain/fused",
        "traced: a second step of ranks 0, 2, 6, with 5, 4, 2 of 8 micro batches",
    ]


def test_no_line_is_longer_than_a_screen_is_wide_and_there_are_no_more_than_a_screen_has():
    assert max(map(len, LINES)) <= 80
    assert len(LINES) <= 48


def test_every_stage_has_a_bar_up_to_its_peak_with_a_mark_at_the_device_s_memory():
    first, second, last = LINES[5:8]
    assert first.startswith("stage 0  WWWW")
    assert first.endswith("P...............|   12.0 GiB")
    assert [line.count(".") for line in (first, second, last)] == [16, 27, 42]  # and one in each number
    assert {line.index("|") for line in (first, second, last)} == {9 + 59}


def test_a_bar_beyond_the_device_s_memory_shows_the_mark_inside():
    line = text_of(memory=6 * GIB).splitlines()[5]
    assert line.index("|") - 9 == 30  # half of 12 GiB in 59 characters
    assert line[9:68].replace("|", "").strip("WARP") == ""


@pytest.mark.parametrize(
    ("gib_of_stage", "expected"),
    [
        (12, "fits: 4.00 GiB to spare on stage 0, the fullest"),
        (16, "fits: 0 GiB to spare on stage 0, the fullest; the plan's error may be larger"),
        (18, "does not fit: 2.00 GiB too much on stage 0"),
    ],
)
def test_the_verdict_says_by_how_much_and_on_which_stage(gib_of_stage, expected):
    assert expected in text_of(stage(0, gib_of_stage), stage(1, 5)).splitlines()


def test_the_fullest_stage_need_not_be_the_first():
    assert "does not fit: 4.00 GiB too much on stage 3" in text_of(stage(0, 12), stage(3, 20))


def test_without_a_known_memory_there_is_no_mark_and_the_option_is_named():
    text = text_of(memory=None)
    assert "needs 12.0 GiB on stage 0; give the device's memory by --memory" in text
    assert "|" not in text


def test_the_table_has_the_parts_that_any_stage_has_in_gib():
    start = LINES.index("                     stage 0   stage 1   stage 3")
    assert LINES[start + 1 : start + 9] == [
        "layers                     2         2         2",
        "parameters               4 M       4 M       4 M",
        "W weights                1.0       1.0       1.0",
        "A activations            9.0       6.0       2.0",
        "R reserve                1.0       1.0       1.0",
        "P process groups         1.0       1.0       1.0",
        "peak, GiB               12.0       9.0       5.0",
        "tensors alone           10.0       7.0       3.0",
    ]


def test_activations_have_a_line_of_their_own_where_the_peak_is_at_another_time():
    assert "most activations" not in text_of()
    update = stage(0, 12, part="optimizer")
    activations = [replace(moment, parts={**moment.parts, "activations": 2 * GIB}) for moment in update.course]
    assert "most activations         2.0" in text_of(replace(update, course=activations))


def test_host_memory_is_a_line_of_its_own_where_something_is_offloaded():
    assert "host memory" not in text_of()
    assert "host memory              6.0" in text_of(stage(0, 12, host=6 * GIB))


def test_more_stages_than_columns_are_a_second_table():
    lines = text_of(*(stage(number, 12) for number in range(8))).splitlines()
    assert sum(line.startswith("W weights") for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_stages_that_were_not_traced_hold_at_most_what_the_one_before_them_does():
    assert "stage 2 holds at most what stage 1 holds" in LINES
    text = text_of(stage(0, 12), stage(1, 9), stage(7, 5))
    assert "stages 2 to 6 hold at most what stage 1 holds" in text
    assert "at most" not in text_of(stage(0, 12), stage(1, 9))


def test_the_time_is_a_range_with_the_length_of_the_whole_training():
    text = words(text_of())
    assert "step: 1.50 to 2.50 s (bubble 15.7 %, communication 4.2 %, update 0.1 %)" in text
    assert "speed of a device: 25.6 to 42.7 tokens/s, 100 to 150 model TFLOP/s, 32.0 to 48.0 % of the peak" in text
    assert "training: 300 G tokens in 63.4 to 105 days, 63,400 to 105,000 device-hours" in text


def test_a_short_training_is_not_given_in_thousandths_of_a_day():
    short = itertools.starmap(Range, [(2.0, 3.0), (0.25, 0.5), (0.01, 0.02), (0.0001, 0.0002)])
    found = [text_of(time=replace(TIME, days=days)).split("tokens in ")[1].split(",")[0] for days in short]
    assert found == ["2.00 to 3.00 days", "6.00 to 12.0 hours", "14.4 to 28.8 minutes", "8.64 to 17.3 seconds"]


def test_an_unknown_time_is_said_to_be_unknown():
    assert "step time: unknown" in text_of(time=None)


def test_assumptions_stand_on_the_screen():
    text = words(text_of())
    assert "process groups: 1.00 GiB, of which 0.500 GiB are the process's context on the device" in text
    assert "trainings reach: matmuls 50.0 to 80.0 %, memory 60.0 to 90.0 %, links 70.0 to 90.0 %" in text
    assert "not counted: kernel launches" in text
    assert "tokenizer: vocab.json not found; counting with 257 entries" in text


def test_the_figures_of_the_time_have_their_source_where_it_is_not_the_table():
    figures = Figures(memory_bandwidth=2039e9, node_bandwidth=12.5e9, devices_per_node=8)
    sources = {"node_bandwidth": "--network", "devices_per_node": "assumed"}
    device = replace(plan().device, peak_flops=312e12, figures=figures, sources=sources)
    assert (
        "device figures, from the table of backend acme: matmuls 312 TFLOP/s, memory 2,040 GB/s, inside a node "
        "unknown, between nodes 12.5 GB/s (--network), 8 devices a node (assumed)"
    ) in words(text_of(device=device))


def test_messages_that_count_nothing_stand_beside_the_time():
    lines = LINES
    assert lines[next(i for i, line in enumerate(lines) if line.startswith("step:")) + 1].startswith("messages between")


def test_a_measured_speed_is_one_number_with_its_run():
    reached = Efficiencies(matmul=0.612, memory=0.68, links=0.68)
    time = replace(TIME, best=reached, worst=reached, seconds=Range(2.0, 2.0), measured_in="runs/a (2.00 s)")
    text = words(text_of(time=time))
    assert "step: 2.00 s (" in text
    assert "that runs/a (2.00 s) reached, scaled by one factor: matmuls 61.2 %, memory 68.0 %, links" in text


def test_more_devices_are_named_where_they_are_enough():
    assert "on stage 0; with more replicas it fits on 16 devices: --devices 16" in words(
        text_of(stage(0, 18), enough_devices=16)
    )


def test_unknown_process_groups_are_said_to_be_counted_as_nothing():
    without = stage(0, 12)
    without.parts["process groups"] = 0
    assert "unknown, counted as 0" in words(text_of(without, figures=Figures()))


def test_only_painted_pieces_carry_colours():
    text = plan_text(plan())
    assert text != "\n".join(LINES)
    for part, letter in {**LETTERS, "limit": "|"}.items():
        colour = style("", fg=COLOURS[part], bold=part == "limit" or None, reset=False)
        text = re.sub(rf"{re.escape(colour)}({re.escape(letter)}+)\x1b\[0m", r"\1", text)
    assert text == "\n".join(LINES)


sizes = st.dictionaries(st.sampled_from(PARTS), st.integers(0, 80 * GIB))


@given(sizes, st.integers(1, 100 * GIB) | st.none(), st.integers(1, 200))
def test_a_bar_is_as_wide_as_it_should_be_and_as_full_as_the_parts(parts, memory, width):
    scale = max(sum(parts.values()), memory or 0, 1)
    text = unstyle(bar(parts, scale=scale, memory=memory, width=width))
    assert len(text) == width + (memory is not None)
    for part, size in parts.items():
        assert abs(text.count(LETTERS[part]) - size / scale * width) <= 1
    assert list(text.strip(". |").replace("|", "")) == sorted(text.strip(". |").replace("|", ""), key="WGOAKRP".index)


def test_modules_are_a_tree_in_the_order_of_the_model():
    names = [(depth, label, row.name if row else "") for depth, label, row in nested(ROWS)]
    assert names == [
        (0, "embedding", ""),
        (1, "word_embeddings", "embedding.word_embeddings"),
        (1, "embedding_dropout", "embedding.embedding_dropout"),
        (0, "decoder", ""),
        (1, "layers.*", ""),
        (2, "mlp", "decoder.layers.*.mlp"),
        (3, "linear_fc1", "decoder.layers.*.mlp.linear_fc1"),
    ]


def test_the_table_of_modules_gives_numbers_and_sums_in_mib():
    lines = module_text(plan(stage(0, 12))).splitlines()
    assert lines[0] == "stage 0, MiB; activations: what one micro-batch keeps"
    assert lines[3].split() == ["word_embeddings", "1", "1", "M", "2.0", "-"]
    assert lines[-1].split() == ["sum", "4", "M", "8.0", "1.5"]


def test_estimates_have_three_digits_and_no_exponent():
    assert [figure(value) for value in (63_412.0, 999.6, 42.71, 0.00712, 0)] == [
        "63,400",
        "1,000",
        "42.7",
        "0.00712",
        "0",
    ]
    assert span(Range(1.0, 1.001)) == "1.00"
    assert [gib(value * GIB) for value in (47.34, 4.734, 0.4734)] == ["47.3", "4.73", "0.473"]


def test_kernels_of_one_operation_are_named_once():
    table = KernelTable(backend="acme", provider="acme 1.0", rows=(kernel("norm", "fast"), kernel("norm", "fast")))
    assert "kernels: norm fast\n" in text_of(kernels=table)


IN_FP8 = Costs(
    forward={Operation(300.0, 8, "fp8"): 2, Operation(400.0, 8, "bf16"): 1},
    backward={},
    once={},
    messages={},
    messages_once={},
)


@pytest.mark.parametrize(
    ("costs", "names", "peak", "line"),
    [
        (None, ("reference",), 2e15, "fp8 is emulated: matmuls take as long as in bf16, and rounding their operands"),
        (IN_FP8, ("scaled",), 2e15, "matmuls in fp8, 60 % of all FLOPs: 2,000 TFLOP/s; rounding operands takes"),
        (
            IN_FP8,
            ("scaled",),
            None,
            "matmuls in fp8, 60 % of all FLOPs: as long as in bf16, since their speed is unknown",
        ),
        (IN_FP8, ("scaled", "reference"), 2e15, "memory traffic; grouped_linear: emulated, in bf16"),
    ],
)
def test_it_says_which_matmuls_are_in_fp8_and_how_fast_they_are(costs, names, peak, line):
    planned = stage(0, 12)
    planned = planned if costs is None else replace(planned, costs=costs)
    rows = tuple(map(kernel, ("linear", "grouped_linear"), names))
    text = text_of(
        planned,
        recipe=recipe(["precision.fp8=rowwise", "precision.dtype=bf16"]),
        device=replace(plan().device, peak_flops_fp8=peak),
        kernels=KernelTable(backend="acme", provider="acme 1.0", rows=rows),
    )
    assert line in words(text)
