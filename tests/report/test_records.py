import math

from pretrain.report.metric_table import console_parts
from pretrain.report.metrics import EvalRecord, EventRecord, TaskRecord, task_lines

TRAIN_KEYS = [
    "kind",
    "iteration",
    "consumed_samples",
    "consumed_tokens",
    "lm_loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "global_batch_size",
    "skipped_iterations",
    "nan_iterations",
    "seconds_per_iteration",
    "samples_per_second",
    "tokens_per_second_per_device",
    "tflops_per_device",
    "mfu",
    "memory_peak_bytes",
]


def test_a_training_line_has_every_key_even_where_there_is_no_value(train_record):
    line = train_record(mfu=None).to_json()
    assert list(line) == TRAIN_KEYS
    assert (line["kind"], line["mfu"]) == ("train", None)


def test_optional_keys_are_written_only_if_they_are_logged(train_record):
    line = train_record(params_norm=12.5, num_zeros_in_grad=3).to_json()
    assert list(line) == [*TRAIN_KEYS, "params_norm", "num_zeros_in_grad"]
    slow = train_record(slowest_rank=3, slowdown=0.25, slowdown_cause="compute").to_json()
    assert list(slow) == [*TRAIN_KEYS, "slowest_rank", "slowdown", "slowdown_cause"]


def test_an_event_has_its_numbers_and_the_text_that_was_shown():
    event = EventRecord(event="rollback", iteration=20, text="back", numbers={"spike_iteration": 23, "loss": math.nan})
    assert event.to_json() == {
        "kind": "event", "event": "rollback", "iteration": 20, "spike_iteration": 23, "loss": None, "text": "back",
    }  # fmt: skip


def test_values_that_are_not_finite_become_null(train_record):
    line = train_record(lm_loss=math.nan, grad_norm=math.inf).to_json()
    assert (line["lm_loss"], line["grad_norm"]) == (None, None)


def test_a_list_has_a_number_for_each_layer_and_null_where_there_is_none(train_record):
    record = train_record(moe_most_loaded=[math.nan, 1.5, 1.25], moe_z_loss=[math.nan, 0.5, 0.25])
    line = record.to_json()
    assert (line["moe_most_loaded"], line["moe_z_loss"]) == ([None, 1.5, 1.25], [None, 0.5, 0.25])
    assert {"experts' load up to 1.50", "z loss 0.3750"} <= set(console_parts(record.metrics))


def test_an_evaluation_line():
    line = EvalRecord.of("valid", 10, math.log(50)).to_json()
    assert list(line) == ["kind", "split", "iteration", "lm_loss", "ppl"]
    assert (line["kind"], line["split"], line["iteration"]) == ("eval", "valid", 10)
    assert math.isclose(line["ppl"], 50)


def test_a_perplexity_beyond_all_numbers_is_null():
    assert EvalRecord.of("test", 1, 1e4).to_json()["ppl"] is None
    assert EvalRecord.of("test", 1, math.nan).to_json() | {"kind": ""} == {
        "kind": "",
        "split": "test",
        "iteration": 1,
        "lm_loss": None,
        "ppl": None,
    }


def test_a_task_has_its_numbers_and_null_for_those_that_are_not_finite():
    numbers = {"acc,none": 0.25, "acc_stderr,none": 0.125, "f1,strict": math.nan}
    record = TaskRecord(iteration=3, task="words", num_fewshot=None, limit=5, metrics=numbers)
    assert record.to_json() == {
        "kind": "task",
        "iteration": 3,
        "task": "words",
        "num_fewshot": None,
        "limit": 5,
        "metrics": {"acc,none": 0.25, "acc_stderr,none": 0.125, "f1,strict": None},
    }
    assert task_lines(record, 9) == [
        "words at iteration 3/9 | acc 0.2500 +- 0.1250",
        "words at iteration 3/9 | f1 (strict) nan",
    ]
