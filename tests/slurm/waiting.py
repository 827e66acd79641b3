"""Waiting for what another process does."""

import time


def wait_for(condition, within_s=90.0):
    until = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found
