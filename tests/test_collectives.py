"""Ranks connect without a line of a library on standard output."""

import os

from pretrain.collectives import silent_connections


def test_what_a_library_prints_while_groups_are_made_is_not_seen(capfd):
    print("before")
    with silent_connections():
        os.write(1, b"[Gloo] Rank 0 is connected to 0 peer ranks.\n")
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"
