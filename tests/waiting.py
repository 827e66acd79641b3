"""Waiting for what another process does."""

import contextlib
import time

import psutil


def wait_for(condition, within_s=240.0):
    """What the condition gives, once that is true."""
    until = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def gone(pid, within_s=60.0):
    """Whether a process ends in time; a zombie has ended."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False
