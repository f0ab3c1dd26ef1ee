"""Where a step's time goes, from traces whose answer is known."""

import pytest

from pretrain.report.step_trace import BACKWARD, COMMUNICATION, DATA, FORWARD, IDLE, OPTIMIZER, REST, step_times
from report.made_up_trace import MAIN, block, event, on_a_device, on_the_host, operator


def seconds(times):
    return {tuple(owner): pytest.approx(each) for owner, each in times.parts.items()}


def test_on_the_host_a_moment_belongs_to_the_innermost_range_of_the_main_thread():
    times = step_times(on_the_host(), "gloo")
    fc1 = "mlp.linear_fc1: fast (acme)"
    assert seconds(times) == {
        (DATA, "data"): 0.05,
        (REST, "forward-backward"): 0.05 + 0.1 + 0.1,  # before forward, after it, after the last gradient
        (FORWARD, fc1): 0.19,
        (FORWARD, "forward"): 0.01,
        (BACKWARD, fc1): 0.1,  # of its forward operator; without the wait
        (COMMUNICATION, "allreduce"): 0.01,  # the call
        (COMMUNICATION, "all_reduce"): 0.095,  # after the call, and between two nodes
        (BACKWARD, "autograd"): 0.005,
        (BACKWARD, "AccumulateGrad"): 0.09,
        (OPTIMIZER, "optimizer: fused (acme)"): 0.2,
    }
    assert sum(times.parts.values()) == pytest.approx(times.seconds) == pytest.approx(1.0)
    assert (times.on_device, times.launches) == (False, 3)  # linear, mm, add_: addmm is called by linear
    assert times.communication == pytest.approx(0.115)  # 0.01 of it while aten::mm computes


def test_on_a_device_a_moment_belongs_to_the_kernel_that_computes_or_else_to_communication():
    times = step_times(on_a_device(), "acmeccl")
    assert seconds(times) == {
        (FORWARD, "mlp"): 400e-6,  # gemm, and what of the copy it does not cover
        (COMMUNICATION, "ring_kernel"): 300e-6,  # of 400: the copy covers 100
        (REST, IDLE): 300e-6,
    }
    assert sum(times.parts.values()) == pytest.approx(times.seconds) == pytest.approx(1e-3)
    assert (times.on_device, times.launches) == (True, 2)
    assert times.communication == pytest.approx(400e-6)


def test_a_kernel_of_the_communication_library_is_known_by_its_name_too():
    trace = on_a_device()
    trace["traceEvents"].append(event("kernel", "acmeccl_gather", 850, 950, 9, correlation=77))
    assert step_times(trace, "acmeccl").communication == pytest.approx(500e-6)
    assert step_times(trace, "other").communication == pytest.approx(400e-6)


def test_the_numbers_are_those_of_a_step_where_there_are_several():
    one, both = step_times(on_the_host(), "gloo"), on_the_host()
    later = [{**each, "ts": each["ts"] + 2_000_000, "id": 2} for each in both["traceEvents"]]
    later[0]["name"] = "step 11"
    two = step_times({"traceEvents": [*both["traceEvents"], *later]}, "gloo")
    assert seconds(two) == {tuple(owner): each for owner, each in one.parts.items()}
    assert two.launches == one.launches


def test_layers_that_are_computed_again_count_as_backward():
    again = block("forward", 420_000, 480_000), block("layer 1/mlp", 425_000, 480_000)
    trace = on_the_host()
    trace["traceEvents"] += [*again, operator("aten::relu", 430_000, 480_000)]
    owners = set(step_times(trace, "gloo").parts)
    assert (BACKWARD, "mlp") in owners
    assert (FORWARD, "mlp") not in owners


def test_a_trace_without_a_step_is_an_error():
    with pytest.raises(ValueError, match="no range of a step"):
        step_times({"traceEvents": [operator("aten::mm", 0, 1, MAIN)]}, "gloo")
