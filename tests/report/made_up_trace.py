"""Traces as torch.profiler writes them, made up: times in microseconds, threads by number."""

MAIN, OTHER, STREAM, NETWORK = 1, 2, 7, 8


def event(category, name, begin, end, thread=MAIN, **arguments):
    """Return an event of a trace."""
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "tid": thread, "args": arguments}


def operator(name, begin, end, thread=MAIN):
    """Return an operator of the host."""
    return event("cpu_op", name, begin, end, thread)


def block(name, begin, end, thread=MAIN):
    """Return a range, as `record_function` makes it."""
    return event("user_annotation", name, begin, end, thread)


def gradient_of(forward, backward, number):
    """Return the two ends of the arrow from an operator of the forward pass to that of the backward pass."""
    return [
        {"ph": phase, "cat": "fwdbwd", "id": number, "ts": each["ts"], "tid": each["tid"]}
        for phase, each in (("s", forward), ("f", backward))
    ]


def on_the_host():
    """Return a step of 1 s on the CPU: 0.2 s forward, 0.3 s backward, of which 0.1 s waits for an all-reduce."""
    linear = operator("aten::linear", 110_000, 280_000)
    node = operator("autograd::engine::evaluate_function: AddmmBackward0", 400_000, 600_000)
    backward = operator("AddmmBackward0", 410_000, 600_000)
    return {
        "traceEvents": [
            block("step 10", 0, 1_000_000),
            block("data", 0, 50_000),
            block("forward-backward", 50_000, 800_000),
            block("forward", 100_000, 300_000),
            block("layer 2/mlp.linear_fc1: fast (acme)", 100_000, 290_000),
            linear,
            operator("aten::addmm", 120_000, 270_000),
            node,
            backward,
            operator("aten::mm", 420_000, 500_000),
            operator("c10d::allreduce_", 500_000, 510_000),
            operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 610_000, 700_000),
            operator("aten::add_", 610_000, 690_000),
            block("optimizer: fused (acme)", 800_000, 1_000_000),
            block("Optimizer.step#Adam.step", 810_000, 990_000),
            # it runs while the main thread computes, waits in the node's Python, and until after the node has ended
            block("gloo:all_reduce", 490_000, 605_000, OTHER),
            block("gloo:all_reduce", 1_000_001, 1_100_000, OTHER),  # of the agreement between steps
            *gradient_of(linear, backward, 1),
        ]
    }


def on_a_device():
    """Return a step of 1 ms on a device: 0.4 ms of kernels, 0.3 ms exposed communication, the rest idle."""
    return {
        "traceEvents": [
            block("step 3", 0, 1000),
            block("forward-backward", 0, 500),
            block("forward", 0, 400),
            block("layer 1/mlp", 0, 100),
            operator("aten::mm", 0, 90),
            event("cuda_runtime", "launch", 10, 20, correlation=1),
            event("cuda_runtime", "launch", 30, 40, correlation=2),
            operator("c10d::allreduce_", 200, 300),
            event("cuda_runtime", "launch", 210, 220, correlation=3),
            event("kernel", "gemm", 100, 300, STREAM, correlation=1),
            event("gpu_memcpy", "copy", 250, 500, STREAM + 1, correlation=2),
            event("kernel", "ring_kernel(...)", 400, 800, NETWORK, correlation=3),
            event("kernel", "of the next step", 1100, 1200, STREAM, correlation=9),
        ]
    }
