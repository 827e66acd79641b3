"""A chapter's measurement may come out otherwise on a machine: it is counted, and only too many fail the session.

A test tells its chapter's with ``record_property(FOUND, n)`` and ``record_property(OTHERWISE, [what and evidence])``;
properties travel with the reports of pytest-xdist's workers, so the one who started them sums. What was otherwise
``BESIDE`` other tests counts unless a test that tells ``ALONE`` follows, which tried it again.
"""

import pytest

FOUND, OTHERWISE = "measurements", "otherwise on this machine"
BESIDE, ALONE = "otherwise beside other tests", "tried again alone"
SHARE, FEWEST = 0.1, 50  # of a few chapters as many may be otherwise as of fifty measurements


class Tally:
    """The plugin, for the process that reports: sums, tells, and fails the session if more than ``SHARE`` differ."""

    def __init__(self) -> None:
        self.found = 0
        self.otherwise: list[str] = []
        self.beside: list[str] = []
        self.tried_again = False

    @property
    def too_many(self) -> bool:
        return len(self.counted) > SHARE * max(self.found, FEWEST)

    @property
    def counted(self) -> list[str]:
        return self.otherwise if self.tried_again else self.otherwise + self.beside

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if report.when == "call":
            self.found += told.get(FOUND, 0)
            self.otherwise += [f"{report.nodeid}: {what}" for what in told.get(OTHERWISE, ())]
            self.beside += [f"{report.nodeid}: {what}" for what in told.get(BESIDE, ())]
            self.tried_again |= told.get(ALONE, False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.found:
            judged = f"more than {SHARE:.0%}: FAILED" if self.too_many else f"at most {SHARE:.0%} may be"
            terminalreporter.section(f"{len(self.counted)} of {self.found} measurements are otherwise; {judged}")
            terminalreporter.write_line("\n".join(self.counted))
            if self.tried_again and self.beside:
                told = (f"beside other tests only, or still: {what}" for what in self.beside)
                terminalreporter.write_line("\n".join(told))
