"""SIGUSR1 reaches a thread while the main thread is in C."""

import os
import signal
import threading
import time

from pretrain.report.hang.gathering import ReportRequests


def test_it_is_read_by_another_thread_and_other_signals_are_not():
    before = signal.getsignal(signal.SIGUSR1)
    previous = signal.signal(signal.SIGUSR2, lambda *_: None)
    answers = []
    with ReportRequests() as requests:
        thread = threading.Thread(target=lambda: answers.extend(requests.wait(60) for _ in range(2)))
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.01)
        thread.start()
        while not answers:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)
        thread.join()
    assert answers == [False, True]
    assert signal.getsignal(signal.SIGUSR1) == before
    signal.signal(signal.SIGUSR2, previous)
    requests.close()


def test_the_thread_can_be_stopped():
    requests = ReportRequests()
    requests.stop()
    assert requests.wait(10) is None
    requests.close()
