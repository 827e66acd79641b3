"""Servers that tests start end with them, however those end: Ctrl-C, a killed worker, a deadline."""

import ctypes
import os
import signal
import subprocess
from typing import Any

_PR_SET_PDEATHSIG = 1  # Linux: prctl(2)
_LIBC = ctypes.CDLL(None)


def popen(command: list[Any], **options: Any) -> subprocess.Popen:
    """``subprocess.Popen`` whose process gets SIGTERM when this one is gone (Linux; elsewhere as usual).

    JupyterLab answers a Ctrl-C of the test run by asking whether it is meant, and nobody is there to say so.
    """
    parent = os.getpid()

    def tie() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it went in between
            os.kill(os.getpid(), signal.SIGTERM)

    return subprocess.Popen(command, preexec_fn=tie if hasattr(_LIBC, "prctl") else None, **options)
