"""A chapter's measurement may come out otherwise on a machine: it is counted, and only too many fail the session.

A test tells its chapter's with ``record_property(FOUND, n)`` and ``record_property(OTHERWISE, [what and evidence])``;
properties travel with the reports of pytest-xdist's workers, so the one who started them sums.
"""

import pytest

FOUND, OTHERWISE = "measurements", "otherwise on this machine"
SHARE, FEWEST = 0.1, 50  # of a few chapters as many may be otherwise as of fifty measurements


class Tally:
    """The plugin, for the process that reports: sums, tells, and fails the session if more than ``SHARE`` differ."""

    def __init__(self) -> None:
        self.found = 0
        self.otherwise: list[str] = []

    @property
    def too_many(self) -> bool:
        return len(self.otherwise) > SHARE * max(self.found, FEWEST)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if report.when == "call" and FOUND in told:
            self.found += told[FOUND]
            self.otherwise += [f"{report.nodeid}: {what}" for what in told[OTHERWISE]]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.found:
            judged = f"more than {SHARE:.0%}: FAILED" if self.too_many else f"at most {SHARE:.0%} may be"
            terminalreporter.section(f"{len(self.otherwise)} of {self.found} measurements are otherwise; {judged}")
            terminalreporter.write_line("\n".join(self.otherwise))
