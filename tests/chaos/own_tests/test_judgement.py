"""The judgement of a fault can fail: each thing that must not be is found, whatever else went well."""

from __future__ import annotations

import dataclasses

import pytest

from chaos.bounded_command import End
from chaos.fault import Ending, Fault
from chaos.fault_outcome import FaultOutcome
from chaos.judgement import NOISE, Undisturbed, judge, largest_difference
from chaos.tiny_training import ITERATIONS, SAVED
from pretrain.tools.doctor.finding import Verdict

LOGGED = tuple((step, 5 - step / 10, 1.0) for step in range(1, ITERATIONS + 1))
UNDISTURBED = Undisturbed(logged=LOGGED)
INTACT = dict.fromkeys(SAVED, "")
RESTART = "rank 1 failed:\nIt was killed by SIGKILL. On Linux ...\nrestart 1 of 3 in 1 s, from iteration 10\n"
BY_ITSELF = Fault(name="killed", endings=(Ending(exit_code=0, says=(r"rank 1 failed:\s+It was killed",), restarts=1),))
BY_COMMAND = Fault(name="full", endings=(Ending(exit_code=2, says=("No space left",)), Ending(exit_code=0)))
DAMAGED = dataclasses.replace(BY_COMMAND, damages=True)


def steps(first, last):
    return "".join(f"iteration {step:2}/30 | samples 2 | loss\n" for step in range(first, last + 1))


ALL_STEPS = steps(1, 30)


def end(code=0, output=ALL_STEPS, seconds=4.0, left=()):
    return End(exit_code=code, output=output, seconds=seconds, left=left)


WENT_ON = FaultOutcome(
    came=True,
    ends=(end(output=steps(1, 12) + RESTART + steps(11, 30)),),
    before=(5, 10),
    states=(INTACT,),
    logged=LOGGED,
)
GIVEN_AGAIN = FaultOutcome(
    came=True,
    ends=(end(2, "checkpoints cannot be written: No space left on device\n"), end(output=steps(11, 30))),
    before=(5, 10),
    states=({5: "", 10: ""}, INTACT),
    logged=LOGGED,
)


def changed(outcome, **values):
    return dataclasses.replace(outcome, **values)


def wrong(fault, outcome, undisturbed=UNDISTURBED):
    """The text of a finding that must be wrong."""
    finding = judge(fault, outcome, undisturbed)
    assert finding.verdict is Verdict.WRONG
    assert finding.check == fault.name
    return finding.text


class TestThatWhichIsOk:
    def test_a_restart_is_told_with_its_cause_and_the_repeated_steps(self):
        finding = judge(BY_ITSELF, WENT_ON, UNDISTURBED)
        assert finding.verdict is Verdict.OK
        assert finding.text == (
            "went on by itself after 1 restart (rank 1 failed: It was killed); 2 steps repeated; 4 s"
        )

    def test_a_message_after_which_the_command_is_given_again_is_told(self):
        finding = judge(BY_COMMAND, GIVEN_AGAIN, UNDISTURBED)
        assert finding.verdict is Verdict.OK
        assert finding.text == "ended with: No space left; the same command went on; 0 steps repeated; 8 s"

    def test_a_signal_that_ended_a_command_has_its_name(self):
        fault = dataclasses.replace(BY_COMMAND, endings=(Ending(exit_code=-9), Ending(exit_code=0)))
        outcome = changed(GIVEN_AGAIN, ends=(end(-9, ""), end(output="")))
        assert judge(fault, outcome, UNDISTURBED).text.startswith("ended with: SIGKILL, exit code -9; ")

    def test_the_checkpoint_that_was_damaged_on_purpose_may_be_damaged_until_it_is_written_again(self):
        outcome = changed(GIVEN_AGAIN, states=({5: "", 10: "iter_0000010/x is damaged"}, INTACT))
        assert judge(DAMAGED, outcome, UNDISTURBED).verdict is Verdict.OK

    def test_losses_may_differ_by_what_two_undisturbed_trainings_may(self):
        outcome = changed(WENT_ON, logged=tuple((step, loss * (1 + 1e-6), norm) for step, loss, norm in LOGGED))
        finding = judge(BY_ITSELF, outcome, Undisturbed(logged=LOGGED, noise=1e-6))
        assert finding.verdict is Verdict.OK
        assert finding.text.endswith("; losses differ by up to 1e-06, 8e-06 is allowed")
        assert wrong(BY_ITSELF, outcome, Undisturbed(logged=LOGGED, noise=0.9e-6 / NOISE))


class TestThatWhichIsWrong:
    def test_a_fault_that_did_not_come_although_all_else_is_well(self):
        assert "could not be made" in wrong(BY_ITSELF, changed(WENT_ON, came=False))

    def test_a_crash_before_the_moment_of_the_fault(self):
        crashed = changed(WENT_ON, came=False, ends=(end(1, "Boom"),), flaws=("x is left",))
        assert wrong(BY_ITSELF, crashed) == "before the fault's moment: exit code 1, last line: Boom; x is left"

    def test_a_flaw_of_the_run_directory(self):
        assert wrong(BY_ITSELF, changed(WENT_ON, flaws=("x is left",))) == "x is left"

    def test_no_end(self):
        hangs = changed(WENT_ON, ends=(end(None, "iteration 12/30\nlast words\n", 90.0),))
        text = wrong(BY_ITSELF, hangs)
        assert "did not end within 90 s, the limit (90 s and 6 times the undisturbed training); last line: last" in text

    def test_another_exit_code(self):
        assert "expected is exit code 0, not exit code 1, last line: Boom" in wrong(
            BY_ITSELF, changed(WENT_ON, ends=(end(1, "Boom"),))
        )

    def test_a_cause_that_is_not_named(self):
        silent = changed(WENT_ON, ends=(end(output=RESTART.replace("rank 1", "rank 0")),))
        assert "the cause is not named" in wrong(BY_ITSELF, silent)

    @pytest.mark.parametrize(("output", "number"), [(RESTART.partition("restart")[0], 0), (RESTART * 2, 2)])
    def test_another_number_of_restarts(self, output, number):
        text = wrong(BY_ITSELF, changed(WENT_ON, ends=(end(output=output + ALL_STEPS),)))
        assert text == f"{number} restarts instead of 1"

    @pytest.mark.parametrize(("fault", "most"), [(BY_ITSELF, 5), (dataclasses.replace(BY_ITSELF, damages=True), 10)])
    def test_a_start_from_the_beginning_although_its_losses_are_equal(self, fault, most):
        again = changed(WENT_ON, ends=(end(output=steps(1, 12) + RESTART + ALL_STEPS),))
        assert wrong(fault, again) == f"12 steps were repeated; {most} at most are not in a checkpoint"

    def test_a_command_that_was_not_needed(self):
        assert "command 2: was not needed" in wrong(
            BY_COMMAND, changed(GIVEN_AGAIN, ends=GIVEN_AGAIN.ends[:1], states=(INTACT,))
        )

    def test_a_second_command_that_ends_as_the_first(self):
        again = changed(GIVEN_AGAIN, ends=(GIVEN_AGAIN.ends[0], GIVEN_AGAIN.ends[0]))
        assert "command 2: expected is exit code 0, not exit code 2, last line: checkpoints cannot be written" in wrong(
            BY_COMMAND, again
        )

    def test_another_node_that_fails(self):
        assert "another node: exit code 1" in wrong(BY_ITSELF, changed(WENT_ON, others=(end(1, "lost"),)))

    def test_a_node_that_was_to_be_killed_and_ended_by_itself(self):
        assert "to be killed: exit code 0" in wrong(BY_ITSELF, changed(WENT_ON, killed=(end(),)))

    @pytest.mark.parametrize("step", [1, 13, ITERATIONS])
    def test_one_bit_of_one_loss(self, step):
        logged = list(LOGGED)
        logged[step - 1] = (step, logged[step - 1][1] * (1 + 2**-52), 1.0)
        text = wrong(BY_ITSELF, changed(WENT_ON, logged=tuple(logged)))
        assert f"losses differ from the undisturbed ones from iteration {step} on" in text

    def test_a_norm_that_is_not_there(self):
        assert "from iteration 1 on" in wrong(BY_ITSELF, changed(WENT_ON, logged=((1, 4.9, None), *LOGGED[1:])))

    def test_an_iteration_that_is_missing(self):
        assert "missing [13]" in wrong(BY_ITSELF, changed(WENT_ON, logged=LOGGED[:12] + LOGGED[13:]))

    def test_an_iteration_that_is_there_twice(self):
        text = wrong(BY_ITSELF, changed(WENT_ON, logged=(*LOGGED[:12], *LOGGED[11:])))
        assert f"{ITERATIONS + 1} lines" in text

    def test_no_losses_at_all_even_where_the_device_is_noisy(self):
        assert wrong(BY_ITSELF, changed(WENT_ON, logged=()), Undisturbed(logged=LOGGED, noise=float("inf")))

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_loss_that_is_no_number_even_where_the_undisturbed_one_is_none(self, value):
        logged = ((1, value, 1.0), *LOGGED[1:])
        assert "from iteration 1 on" in wrong(BY_ITSELF, changed(WENT_ON, logged=logged))
        assert wrong(BY_ITSELF, changed(WENT_ON, logged=logged), Undisturbed(logged=logged))

    def test_a_checkpoint_that_is_lost_at_the_end(self):
        states = {step: "" for step in SAVED if step != 10}
        assert "checkpoints are lost: 10" in wrong(BY_ITSELF, changed(WENT_ON, states=(states,)))

    def test_a_checkpoint_that_is_lost_on_the_way_and_comes_back(self):
        assert "checkpoints are lost: 5" in wrong(BY_COMMAND, changed(GIVEN_AGAIN, states=({10: ""}, INTACT)))

    @pytest.mark.parametrize(
        ("fault", "states"),
        [
            (BY_COMMAND, ({5: "", 10: "iter_0000010/x is damaged"}, INTACT)),
            (DAMAGED, ({5: "iter_0000005/x is damaged", 10: "iter_0000010/x is damaged"}, INTACT)),
            (DAMAGED, ({5: "", 10: ""}, INTACT | {10: "iter_0000010/x is damaged"})),
        ],
    )
    def test_a_damaged_checkpoint_that_nobody_damaged(self, fault, states):
        assert "x is damaged" in wrong(fault, changed(GIVEN_AGAIN, states=states))

    @pytest.mark.parametrize(("where", "code"), [("ends", 0), ("others", 0), ("killed", -9)])
    def test_a_process_that_is_left(self, where, code):
        outcome = changed(WENT_ON, **{where: (dataclasses.replace(WENT_ON.ends[0], exit_code=code, left=(4711,)),)})
        assert "processes were left behind: 4711" in wrong(BY_ITSELF, outcome)

    def test_all_that_is_wrong_is_told(self):
        outcome = changed(WENT_ON, ends=(end(1, "Boom", left=(4711,)),), logged=LOGGED[:3], states=({5: ""},))
        assert len(wrong(BY_ITSELF, outcome).split("; ")) == 4


def test_the_difference_of_trainings_of_other_iterations_is_infinite():
    assert largest_difference(LOGGED, LOGGED[1:]) == float("inf")
    assert largest_difference(LOGGED, LOGGED) == 0.0
