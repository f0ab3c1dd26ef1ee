"""Ranks connect without a line of a library on standard output."""

import os

from pretrain.collectives import library_output_to_stderr


def test_what_a_library_prints_while_groups_are_made_is_no_output(capfd):
    print("before")
    with library_output_to_stderr():
        os.write(1, b"[Gloo] Rank 0 is connected to 0 peer ranks.\n")
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert err.startswith("[Gloo]")
