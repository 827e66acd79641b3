"""A test that measures can be spoiled by other programs: marked ``timed``, it gets a second try with no test beside.

Only the marker gives one, the summary names who needed it and what was wrong at first, and what fails twice has failed.
"""

import fcntl
import os
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

NEEDED = "second try"
_WRONG = pytest.StashKey[str]()  # what the first try said


class Turns:
    """Who may use the machine: tests side by side share it, one that measures again has it for itself."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._door, self._room = (os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT) for name in ("door", "room"))

    def enter(self, kind: int) -> None:
        """Wait for a share (LOCK_SH) or for all of it (LOCK_EX); who waits for all keeps the door shut for others."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, kind)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._room, fcntl.LOCK_UN)


class SecondTry:
    """The plugin: every test waits for its turn, and one that measures gets a second one."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None):
        """Around everything, the time limit of a test too: to wait for a turn is no test's fault."""
        again = _WRONG in item.stash
        self.turns.enter(fcntl.LOCK_EX if again else fcntl.LOCK_SH)
        try:
            ran = yield
        finally:
            self.turns.leave()
        if _WRONG in item.stash and not again:
            item.user_properties.append((NEEDED, item.stash[_WRONG]))
            return item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        return ran

    @pytest.hookimpl(specname="pytest_runtest_protocol", tryfirst=True)
    def pytest_try_first(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """The first try of a test that measures: its failure is kept, not reported. All other tests run as always."""
        if _WRONG in item.stash or not item.get_closest_marker("timed"):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        wrong = [report for report in reports if report.failed]
        if wrong:
            item.stash[_WRONG] = _message(wrong[0])
            try:
                item.session._setupstate.teardown_exact(None)  # fixtures may have measured too: all are made anew
            except Exception as error:
                item.stash[_WRONG] += f"; then, when fixtures ended: {error!r}"
            return True
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter) -> None:
        """Who needed a second try, how it ended, and what was wrong at first."""
        needed = {
            report.nodeid: f"{report.nodeid} ({report.outcome}), at first: {dict(report.user_properties)[NEEDED]}"
            for reports in terminalreporter.stats.values()
            for report in reports
            if isinstance(report, pytest.TestReport) and NEEDED in dict(report.user_properties)
        }
        if needed:
            terminalreporter.section("needed a second try, alone")
            terminalreporter.write_line("\n".join(needed.values()))


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else report.longreprtext
