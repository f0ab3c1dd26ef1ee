"""Run of the kit tier by tier, which ends with the first tier that fails."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pretrain.conformance.tiers import TIER_OF, TIERS

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

FIRST, *_ = TIERS


class TierRun:
    """A pytest plugin: the order of the tests, the end after a tier that failed, and the time of each tier."""

    def __init__(self, chosen: Collection[str]) -> None:
        self._tiers = [tier for tier in TIERS if tier in chosen]
        self._tier = FIRST
        self._counts: dict[str, Counter[str]] = {}
        self._seconds = dict.fromkeys(self._tiers, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Called by pytest with all tests: leave out other tiers, and sort."""
        of_tier = {tier: [item for item in items if _tier(item) == tier] for tier in TIERS}
        config.hook.pytest_deselected(items=[item for item in items if _tier(item) not in self._tiers])
        items[:] = [item for tier in self._tiers for item in of_tier[tier]]
        self._counts = {tier: Counter() for tier in self._tiers if of_tier[tier]}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Called by pytest for each test: count its time; after a tier's last one stop where something failed."""
        self._tier, start = _tier(item), time.monotonic()
        result = yield
        self._seconds[self._tier] += time.monotonic() - start
        if nextitem is not None and _tier(nextitem) != self._tier and item.session.testsfailed:
            item.session.shouldfail = f"tier {self._tier} failed; the tiers after it were not run"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest with the outcome of each test's setup, call and teardown."""
        if report.when == "call" or report.outcome != "passed":
            self._counts[self._tier][report.outcome] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Called by pytest at the end."""
        terminalreporter.section("tiers")
        for tier, counts in self._counts.items():
            told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
            terminalreporter.write_line(
                f"{tier}: {told} in {self._seconds[tier]:.0f} s" if told else f"{tier}: not run"
            )


def _tier(item: pytest.Item) -> str:
    """Return the tier of a test; that of the module's one function is the first."""
    cls = getattr(item, "cls", None)
    return FIRST if cls is None else TIER_OF[cls.__name__]
