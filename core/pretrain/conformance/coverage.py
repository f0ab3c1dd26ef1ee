"""Check that the kit has compared every kernel of the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pretrain.conformance.answers import answers
from pretrain.conformance.catalogue import CATALOGUE
from pretrain.plugins.host.discovery import Role

if TYPE_CHECKING:
    from pretrain.conformance.subject import Kernel, Subject


class TestCoverage:
    """Kernels that decline all of the kit's requests."""

    operations = tuple(CATALOGUE)

    def test_takes_a_request(self, subject: Subject, kernel: Kernel) -> None:
        """Every kernel takes at least one request; otherwise it was not compared."""
        found = answers(subject, kernel, CATALOGUE[kernel.operation])
        if found.absent:
            pytest.skip(f"not on this machine: {found.absent}")
        assert found.taken, found.fault()

    @pytest.mark.parametrize("operation", CATALOGUE)
    def test_names_a_kernel(self, subject: Subject, operation: str) -> None:
        """A hook of the backend offers or declines a kernel for at least one request."""
        own = [member for member in subject.plugins.members if member.installed.role is Role.BACKEND]
        for plugin in own:
            if not hasattr(plugin.hooks, f"pretrain_{operation}"):
                continue
            requests = CATALOGUE[operation]
            named = any(kernel.plugin == plugin.installed.name for kernel in subject.kernels(requests))
            assert named, (
                f"pretrain_{operation} of {plugin.installed.label} names no kernel for any request: nothing was "
                "compared.\nAnswer Decline(name, reason) where a kernel does not fit, or leave the hook out."
            )
