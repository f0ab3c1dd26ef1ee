"""Was every kernel of the backend compared with something?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pretrain.testing.catalogue import CATALOGUE
from pretrain.testing.negotiation import answers

if TYPE_CHECKING:
    from pretrain.testing.subject import Kernel, Subject


class TestCoverage:
    """Kernels that take none of the kit's requests."""

    operations = tuple(CATALOGUE)

    def test_takes_a_request(self, subject: Subject, kernel: Kernel) -> None:
        """A kernel that declines everything was compared with nothing, and nobody would notice."""
        found = answers(subject, kernel, CATALOGUE[kernel.operation])
        if found.absent:
            pytest.skip(f"not on this machine: {found.absent}")
        assert found.taken, found.fault()
