"""Wait for what another process does."""

import contextlib
import time

import psutil


def wait_for(condition, within_s=240.0):
    """Return what the condition returns, as soon as that is true. After ``within_s`` seconds the test fails."""
    deadline_s = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return result


def gone(pid, within_s=60.0):
    """Return whether a process ends in time. A zombie has ended."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False
