"""The sentences of a hang report: who waits in what, who is not there, and where that one is."""

from dataclasses import replace

import pytest

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.hang import position
from pretrain.report.hang.diagnosis import diagnose, full_report, report
from pretrain.report.hang.waits import is_ahead
from report.hang.ranks import DP, TP, by_rank, called, message, processes, state

ALL = (0, 1, 2, 3, 4, 5)


def test_a_rank_that_is_not_there_is_named_with_its_activity_and_line():
    waiting = called(TP, (3, 4, 5), layer := 17)
    states = by_rank(
        *(state(rank, waiting, layer=layer, layers=24, direction="backward", iteration=812) for rank in (3, 5)),
        state(4, activity="data", iteration=812, at="pretrain/data/token_files/reading.py:88 read"),
    )
    assert diagnose(states, {rank: processes(6)[rank] for rank in (3, 4, 5)}) == [
        (
            "ranks 3, 5 wait in all-reduce of group tp (layer 17 of 24, backward, iteration 812); rank 4 is not there: "
            "it is in data loading, iteration 812; pretrain/data/token_files/reading.py:88 read"
        )
    ]


def test_a_rank_that_has_called_an_earlier_collective_of_the_group_is_not_there():
    states = by_rank(state(0, called(number=5)), state(1, done=[called(number=4, pending=False)], at="a.py:1 f"))
    assert (
        "rank 1 is not there: it is in layer 2 of 4, forward, iteration 8; a.py:1 f"
        in diagnose(states, processes(2))[0]
    )


def test_a_rank_that_has_left_the_collective_is_not_missed():
    """The root of a broadcast leaves before the others have it."""
    left = called(number=5, operation="broadcast", pending=False)
    states = by_rank(state(0, done=[left], at="a.py:1 f"), state(1, replace(left, pending=True)))
    assert "not there" not in "".join(diagnose(states, processes(2)))


def test_those_who_wait_for_the_waiting_come_after_the_cause():
    tensor, data = called(TP, (0, 1)), called(DP, (0, 2), 3)
    states = by_rank(state(0, tensor), state(1, activity="save", at="a.py:1 f"), state(2, data))
    first, second = diagnose(states, processes(3))
    assert first.startswith("rank 0 waits in all-reduce of group tp")
    assert "rank 1 is not there: it is in saving" in first
    assert second == "rank 2 waits for them in turn, in all-reduce of group dp"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("stopped", "`kill -CONT 101` resumes it"),
        ("ended", "process 101 on node1 is gone"),
        ("blocked", "uninterruptible wait"),
        ("alive", "its Python does not run"),
        ("", "look at it there"),
    ],
)
def test_a_rank_that_says_nothing_is_described_by_its_process(known, words):
    seen = replace(state(0, called()), processes={1: known}, last_seen={1: "layer 3 of 4, forward, iteration 8"})
    (sentence,) = diagnose(by_rank(seen), processes(2))
    assert "rank 1 is not there: it does not answer" in sentence
    assert words in sentence
    assert ("last in layer 3 of 4, forward, iteration 8" in sentence) == bool(known)


def test_ranks_of_a_node_that_is_gone_are_named_together():
    states = by_rank(*(state(rank, called(DP, (rank, rank + 4), 3)) for rank in range(4)))
    (sentence,) = diagnose(states, processes(8))
    assert sentence.startswith("ranks 0-3 wait in all-reduce of group dp")
    assert "ranks 4-7 are not there: " in sentence


def test_different_shapes_of_one_collective_are_shown_with_their_ranks():
    wrong = called(ranks=ALL[:3], shapes=((7,),))
    states = by_rank(*(state(rank, called(ranks=ALL[:3])) for rank in (0, 2)), state(1, wrong))
    (sentence,) = diagnose(states, processes(3))
    assert sentence == (
        "the ranks of group tp call different shapes together: ranks 0, 2: all-reduce [4, 8] float32 (layer 2 of 4, "
        "forward, iteration 8); rank 1: all-reduce [7] float32 (layer 2 of 4, forward, iteration 8)"
    )


def test_rows_of_experts_differ_in_number_by_right():
    """Rank 1 sends other rows to the experts than rank 0."""
    group = "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"
    calls = (called(group, operation="all_to_all", shapes=((rows, 8),)) for rows in (5, 7))
    (sentence,) = diagnose(by_rank(*(state(rank, call) for rank, call in enumerate(calls))), processes(2))
    assert "all its ranks are there" in sentence
    assert "all-to-all of group etp x ep" in sentence


def test_different_operations_under_one_number_are_shown():
    states = by_rank(state(0, called()), state(1, called(operation="all_gather")))
    assert "call different collectives together" in diagnose(states, processes(2))[0]


def test_a_rank_that_is_ahead_has_skipped_a_collective():
    states = by_rank(
        state(0, called(TP, number=5)),
        state(1, called(DP, number=2), activity="optimizer", layer=0, direction="", done=[called(TP, number=4)]),
    )
    (sentence,) = diagnose(states, processes(2))
    assert sentence.endswith("rank 1 is ahead: it skipped a collective of group tp")


def test_ranks_in_one_collective_of_the_host_at_different_places_have_lost_step():
    states = by_rank(state(0, called(library="gloo")), state(1, called(library="gloo"), layer=3))
    assert "one of them skipped a collective or called an extra one" in diagnose(states, processes(2))[0]


def test_places_of_hosts_that_run_ahead_of_their_devices_say_nothing():
    states = by_rank(state(0, called(library="nccl")), state(1, called(library="nccl"), layer=3))
    (sentence,) = diagnose(states, processes(2))
    assert "skipped" not in sentence
    assert sentence.endswith("all its ranks are there: the network between them or a device is stalled")


def test_a_rank_that_has_left_the_collective_and_waits_in_a_later_one_is_not_in_it():
    left = called(number=5, operation="broadcast", pending=False)
    states = by_rank(state(0, replace(left, pending=True)), state(1, called(number=6), done=[left], layer=3))
    assert diagnose(states, processes(2)) == [
        (
            "rank 0 waits in broadcast of group tp (layer 2 of 4, forward, iteration 8); rank 1 has left it and waits "
            "in a later one for rank 0: the network between them or a device is stalled"
        )
    ]


def test_a_host_that_runs_ahead_has_not_left_what_its_device_is_in():
    states = by_rank(state(0, called(number=5)), state(1, called(number=6), done=[called(number=5)]))
    assert "all its ranks are there" in diagnose(states, processes(2))[0]


def test_a_rank_that_has_ended_with_an_error_of_its_own_is_named_with_it():
    """It writes a checkpoint before it ends; that it is past the collective is no wonder."""
    failed = state(1, activity=position.END, error="DataError: sample 4711", at="a.py:1 finish", layer=0, direction="")
    (sentence,) = diagnose(by_rank(state(0, called()), failed), processes(2))
    assert sentence.endswith(
        "rank 1 is not there: it is in the end of the training, iteration 8; after its own error, "
        "DataError: sample 4711; a.py:1 finish"
    )


def test_two_groups_called_in_different_orders_are_a_deadlock():
    states = by_rank(state(0, called("first", number=1)), state(1, called("second", number=1)))
    (sentence,) = diagnose(states, processes(2))
    assert "rank 0 waits in all-reduce of group first" in sentence
    assert "rank 1 waits in all-reduce of group second" in sentence
    assert "a deadlock" in sentence


def test_a_circle_of_three_is_found():
    states = by_rank(
        *(state(rank, called(name, tuple(sorted((rank, (rank + 1) % 3))), 1)) for rank, name in enumerate("abc"))
    )
    assert "a deadlock" in diagnose(states, processes(3))[0]


def test_a_collective_that_all_have_called_is_the_networks():
    states = by_rank(state(0, called()), state(1, called()))
    assert diagnose(states, processes(2))[0].endswith("the network between them or a device is stalled")


def test_a_stage_that_sends_nothing_is_named_by_the_next():
    stages = (0, 1, 2)
    states = by_rank(
        state(0, activity="data", at="a.py:1 f"),
        state(1, message("recv_forward", 0, stages), layer=0),
        state(2, message("recv_forward", 1, stages), layer=0),
    )
    first, second = diagnose(states, processes(3))
    assert first.startswith("rank 1 waits in recv_forward with rank 0 (group pp)")
    assert "rank 0 is not there: it is in data loading" in first
    assert second.startswith("rank 2 waits for them in turn, in ")


def test_ranks_that_wait_for_nobody_are_told_by_what_they_do():
    states = by_rank(*(state(rank, activity="save", at="a.py:1 f") for rank in range(3)))
    assert diagnose(states, processes(3)) == ["ranks 0-2 are in saving, iteration 8; a.py:1 f"]


def test_a_message_whose_other_rank_is_not_known_says_so():
    states = by_rank(state(0, message("coalesced", NO_PEER)), state(1, message("coalesced", NO_PEER)))
    assert "does not say with which rank" in diagnose(states, processes(2))[0]


def test_two_stages_that_wait_on_each_other_are_one_sentence():
    states = by_rank(state(0, message("recv_backward", 1)), state(1, message("recv_forward", 0)))
    (sentence,) = diagnose(states, processes(2))
    assert sentence.startswith("ranks 0 and 1 wait on each other with mismatched messages: rank 0 waits in recv_b")
    assert "; rank 1 waits in recv_forward with rank 0 (group pp)" in sentence


def test_several_ranks_at_one_place_are_not_there_together():
    states = by_rank(state(0, called(ranks=(0, 1, 2))), *(state(rank, activity="data") for rank in (1, 2)))
    (sentence,) = diagnose(states, processes(3))
    assert sentence.endswith("ranks 1-2 are not there: each is in data loading, iteration 8")


def test_a_reduction_of_gradients_is_before_the_optimizer():
    reduces, updates = state(0, activity=position.REDUCTION), state(1, activity="optimizer")
    assert is_ahead(updates, reduces)
    assert not is_ahead(reduces, updates)
    assert is_ahead(reduces, state(2))
    assert is_ahead(state(3, activity="save"), updates)


def test_an_error_of_the_diagnosis_leaves_the_lines_of_the_ranks(monkeypatch):
    monkeypatch.setattr("pretrain.report.hang.diagnosis.diagnose", lambda *_: 1 / 0)
    text = full_report("head", by_rank(state(0, called(), at="a.py:1 f")), processes(1))
    assert "the diagnosis failed: ZeroDivisionError" in text
    assert "rank 0: layer 2 of 4, forward, iteration 8; waits in all-reduce" in text
    assert "thread MainThread" in text


def test_a_thousand_ranks_fit_a_terminal():
    states = by_rank(
        *(state(rank, called(f"group {rank % 40}", tuple(range(1000)), rank % 40 + 1)) for rank in range(999)),
        state(999, at="a.py:1 f"),
    )
    text = report("head", states, processes(1000), "report.txt")
    assert len(text.splitlines()) < 40
    assert "rank 999 is not there" in text
