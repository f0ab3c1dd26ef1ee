import dataclasses
import errno
import signal
import time

import pytest

from pretrain.errors import BackendError, CheckpointError, DeviceError, InUseError, NotFiniteError, OtherRankError
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure, root_cause


def failure(rank, when, text="died", **more):
    return Failure(rank=rank, when=when, exit_code=CRASH, text=text, **more)


def caught(error):
    try:
        raise error
    except Exception as raised:  # noqa: BLE001
        return Failure.of(raised, 2, with_traceback=False)


def test_a_user_error_is_shown_as_its_message():
    told = caught(BackendError("no device\nplug one in"))
    assert (told.exit_code, str(told)) == (USER_ERROR, "rank 2: no device\nplug one in")


@pytest.mark.parametrize(
    ("error", "passing"),
    [(DeviceError("no device"), True), (InUseError("in use"), True), (BackendError("no fp8"), False)],
)
def test_a_missing_device_and_a_directory_in_use_may_pass(error, passing):
    assert caught(error).passing is passing


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EIO, CRASH), (errno.ESTALE, CRASH), (errno.ENOSPC, USER_ERROR), (errno.EACCES, USER_ERROR)],
)
def test_a_disk_that_fails_is_a_crash_in_the_errors_words_and_a_full_one_is_the_users(number, code):
    error = CheckpointError("checkpoints cannot be written")
    error.__cause__ = RuntimeError("of a library")
    error.__cause__.__context__ = OSError(number, "reason")
    told = caught(error)
    assert (told.exit_code, told.text) == (code, "checkpoints cannot be written")


def test_values_that_are_not_finite_are_a_failure_of_those_that_its_message_names():
    told = caught(NotFiniteError("not finite, first on rank 1"))
    assert (told.exit_code, str(told)) == (CRASH, "not finite, first on rank 1")


def test_a_user_error_is_shown_with_its_traceback_on_demand():
    told = Failure.of(BackendError("no device"), 0, with_traceback=True)
    assert told.exit_code == USER_ERROR
    assert "pretrain.errors.BackendError: no device" in str(told)


def test_a_bug_is_shown_with_its_traceback():
    told = caught(ValueError("negative length"))
    assert told.exit_code == CRASH
    assert str(told).startswith("rank 2 failed:\nTraceback")
    assert str(told).endswith("ValueError: negative length")


def test_a_failure_is_read_back_from_its_file(tmp_path):
    told = caught(ValueError("x"))
    told.write(tmp_path / "2.json")
    assert Failure.read(tmp_path / "2.json") == told
    assert Failure.read(tmp_path / "3.json") is None


def test_the_folder_of_a_launcher_that_has_ended_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        caught(ValueError("x")).write(tmp_path / "gone" / "2.json")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"),
        RuntimeError("Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        type("DistBackendError", (type("DistError", (RuntimeError,), {}),), {})("remote process exited"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_peer_is_recognized(error):
    assert caught(error).lost_peer


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv",
            "60",
        ),
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 500ms for send", "0.5"),
    ],
)
def test_a_timeout_of_a_wait_for_a_rank_is_shown_without_a_traceback(text, seconds):
    waited = caught(RuntimeError(text))
    assert waited.lost_peer
    first, second, *_ = str(waited).splitlines()
    assert first == "rank 2 failed:"
    assert second.startswith(f"It waited {seconds} s for another rank and timed out: one is stopped, hangs, or")
    assert len(str(waited).splitlines()) == 3


def test_a_timeout_of_the_store_is_a_timeout_of_a_wait_for_a_rank():
    class DistError(RuntimeError):
        pass

    for text in ("wait timeout after 2000ms, keys: /default_pg/0", "Timed out after 2 seconds waiting for clients."):
        assert "It waited 2 s for another rank" in str(caught(DistError(text)))


def test_another_timeout_keeps_its_traceback():
    assert "Traceback" in str(caught(RuntimeError("DataLoader timed out after 5 seconds")))


def test_an_ordinary_error_is_not_a_lost_peer():
    assert not caught(RuntimeError("shape mismatch")).lost_peer


def test_the_first_failure_is_the_cause():
    assert root_cause([failure(0, 2.0, "b"), failure(1, 1.0, "a")]).rank == 1


def test_a_lost_peer_is_the_cause_only_if_there_is_no_other():
    lost = failure(0, 1.0, "lost", lost_peer=True)
    assert root_cause([lost, failure(1, 2.0, "killed")]).rank == 1
    assert root_cause([lost]) is lost


def test_the_crash_of_a_rank_is_the_cause_of_what_others_say_about_it():
    """All ranks fail together where one cannot write its part of a checkpoint; a user error is not restarted."""
    crash = caught(RuntimeError("uncorrectable ECC error"))
    told = dataclasses.replace(caught(OtherRankError("uncorrectable ECC error")), rank=0, when=1.0)
    assert root_cause([told, crash]) is crash


def test_of_equal_failures_the_lowest_rank_does_not_make_it_a_consequence():
    full = failure(1, 1.0, "no space left")
    told = failure(0, 1.0, "no space left", lost_peer=True)
    assert (root_cause([told, full]).rank, root_cause([told, full]).lost_peer) == (0, False)


def test_of_equal_failures_the_lowest_ranks_is_shown():
    assert root_cause([failure(3, 1.0, "same"), failure(0, 1.2, "same"), failure(1, 0.9, "same")]).rank == 0


@pytest.mark.parametrize("code", [-signal.SIGINT, -signal.SIGTERM, 130, 143])
def test_an_interrupted_rank_is_recognized(code):
    assert Failure.from_exit_code(0, code).interrupted


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "killed by SIGKILL. On Linux"), (-11, "killed by SIGSEGV."), (3, "exit code 3"), (-200, "signal 200")],
)
def test_a_rank_without_output_is_described_by_its_exit_code(code, words):
    told = Failure.from_exit_code(1, code)
    assert words in str(told)
    assert not told.interrupted


def test_its_time_is_the_wall_clocks_at_that_moment(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert Failure(text="no layers").when == 5.0
