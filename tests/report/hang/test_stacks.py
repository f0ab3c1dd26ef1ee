"""Choice of the thread whose stack is the training's."""

from pretrain.report.hang.awaited_collective import Frame, Stack, training_first

IN_BACKWARD = Stack("MainThread", (Frame("torch/autograd/graph.py", 1, "f", "Variable._engine.run_backward(  # C++"),))
ELSEWHERE = Stack("MainThread", (Frame("a.py", 1, "f", "time.sleep(1)"),))
AUTOGRAD = Stack("a thread that Python did not start", (Frame("torch/distributed/d.py", 2, "all_reduce"),))
DUMMY = Stack("Dummy-7", (Frame("mine.py", 2, "backward"),))
READER = Stack("Thread-1", (Frame("queue.py", 3, "get"),))


def test_a_devices_backward_pass_is_in_a_thread_of_autograds():
    assert training_first([IN_BACKWARD, READER, AUTOGRAD]) == [AUTOGRAD, IN_BACKWARD, READER]
    assert training_first([IN_BACKWARD, DUMMY])[0] == DUMMY


def test_a_main_thread_that_waits_for_a_checkpoint_is_where_its_thread_is():
    joins = Frame("threading.py", 1, "join"), Frame("pretrain/checkpoint/writing/background.py", 2, "wait")
    waits, writes = Stack("MainThread", joins), Stack("checkpoint", (Frame("site/disk.py", 3, "fsync"),))
    assert training_first([waits, READER, writes]) == [writes, waits, READER]
    assert training_first([waits, READER])[0] == waits
    assert training_first([ELSEWHERE, writes])[0] == ELSEWHERE


def test_everything_else_is_in_the_main_thread():
    assert training_first([ELSEWHERE, AUTOGRAD])[0] == ELSEWHERE
    assert training_first([IN_BACKWARD, READER])[0] == IN_BACKWARD
    assert training_first([]) == []
