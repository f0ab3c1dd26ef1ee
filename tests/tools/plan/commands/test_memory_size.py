"""`--memory`: sizes as people write them."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.plan.command import MemorySize

READ = MemorySize()


def read(text):
    return READ.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 2**30),
        ("80GiB", 80 * 2**30),
        ("80 gb", 80 * 2**30),
        ("80g", 80 * 2**30),
        ("81920MB", 80 * 2**30),
        ("32768MiB", 32 * 2**30),
        ("79.25GB", 79.25 * 2**30),
        ("85899345920", 80 * 2**30),
        ("85899345920B", 80 * 2**30),
    ],
)
def test_gb_are_gib_as_makers_of_devices_name_them(text, size):
    assert read(text) == size


@pytest.mark.parametrize("text", ["", "much", "40TBs", "-40GB", "4e10", "40GB40", "GB", "nan", "1,5GB"])
def test_anything_else_is_an_error_with_what_is_allowed(text):
    with pytest.raises(click.BadParameter, match="Allowed: 40GB, 40GiB, 32768MB, or bytes"):
        read(text)


@pytest.mark.parametrize("text", ["40", "80", "0GB"])
def test_a_few_bytes_were_meant_in_gb(text):
    with pytest.raises(click.BadParameter, match="less than any device has"):
        read(text)


@given(st.integers(2**20, 2**40))
def test_bytes_are_themselves(size):
    assert read(str(size)) == size
