"""Something done to a hostile file, in a child of a process that has imported the course: it may crash, hang or grow.

    outcome = Forking()("open_split", str(folder))
    outcome.value_or_line()     # what came of it, None where it was refused; fails unless it was refused in one line

What can be done stands in ``acts``.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``ended`` is 0, minus a signal, or None if it took longer than any honest work does."""

    ended: int | None
    value: Any = None
    refused: str = ""
    raised: str = ""
    out: str = ""
    err: str = ""

    def value_or_line(self):
        assert self.ended == 0, self
        assert not self.raised, self.raised
        if self.refused:
            assert is_line(self.refused), self.refused
        return self.value


def is_line(said):
    """One line that says more than that something is wrong."""
    return len(said.splitlines()) == 1 and len(said) > 25


class Forking:
    """The client of ``acts.py``."""

    def __init__(self):
        file = Path(__file__).with_name("acts.py")
        self._process = subprocess.Popen(
            [sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, act, *args, **around):
        """``around``: ``env`` (None takes a variable away), ``cwd``, ``encoding`` of the output."""
        self._process.stdin.write(json.dumps({"act": act, "args": args, **around}) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=150)
