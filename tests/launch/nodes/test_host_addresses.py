"""The question to all hosts whether they answer."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from launch.rank_processes import alive, wait_for
from pretrain.launch.nodes import host_addresses as module
from pretrain.launch.nodes.host_addresses import UnreachedError, host_addresses

PDSH = """
[ "$0" = -b ] && trap 'kill $ssh; exit 1' INT
setsid sleep 600 > /dev/null 2>&1 & ssh=$!
echo $ssh > pid
echo pretrain-node 0 10.9.9.9
wait
"""
"""A pdsh whose second ssh gets no answer; pdsh gives each a session of its own, and with -b ends them on SIGINT."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ssh(folder):
    return int((folder / "pid").read_text())


def test_a_host_that_is_silent_is_named_and_no_ssh_is_left(folder, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 1.0)
    with pytest.raises(UnreachedError, match=r"does not reach b \(no answer\)"):
        host_addresses(["sh", "-c", PDSH], ["a", "b"])
    wait_for(lambda: not alive(ssh(folder)), "the end of ssh")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_hosts_are_asked_leaves_no_ssh(folder, number):
    def stop():
        wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "ssh")
        os.kill(os.getpid(), number)

    def ask():
        thread.start()
        try:
            host_addresses(["sh", "-c", PDSH], ["a", "b"])
        finally:
            thread.join()

    thread = threading.Thread(target=stop)
    before = signal.signal(number, signal.default_int_handler)  # nohup ignores SIGHUP, and a signal ends no test run
    try:
        with pytest.raises(SystemExit, match=str(128 + number)):
            ask()
    finally:
        signal.signal(number, before)
    wait_for(lambda: not alive(ssh(folder)), "the end of ssh")
