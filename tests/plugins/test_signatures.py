"""Kernels are called by position: names of parameters are a plugin's own, but for what stands after `*`."""

from __future__ import annotations

import pytest

from pretrain.plugins.signatures import by_position


def test_a_kernel_with_other_names_gets_its_arguments():
    kernel = by_position("linear", lambda x, w, b, g: (x, w, b, g))
    assert kernel(1, group=4, weight=2, bias=3) == (1, 2, 3, 4)


def test_what_is_left_out_is_passed_as_the_model_does():
    kernel = by_position("attention", lambda q, k, v, m, *, training: (q, k, v, m, training))
    assert kernel(query=1, key=2, value=3) == (1, 2, 3, None, True)


def test_names_that_the_signature_has_not_are_refused():
    with pytest.raises(TypeError, match="'q'"):
        by_position("attention", lambda *given: given)(1, 2, 3, q=1)
