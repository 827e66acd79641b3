"""Imported by multiprocessing's fork server, and nowhere else: what every rank needs, loaded once.

Nothing here computes, so no thread is left that a fork would lose. torch._dynamo is imported by the first optimizer:
seconds for each rank if it is not here.
"""

import atexit
import gc
import os
import shutil
import signal

from dltutorial.launch import worker

os.setsid()  # Ctrl-C in a terminal is for the caller, which ends the ranks
_NOTHING = os.open(os.devnull, os.O_RDWR)
for _number in (0, 1, 2):  # whoever reads the caller's output must not wait for this process, too
    os.dup2(_NOTHING, _number)
signal.signal(worker.WHERE_SIGNAL, signal.SIG_IGN)  # until a rank is able to answer
if folder := os.environ.get(worker.SOCKETS):  # multiprocessing removes it itself, unless the caller is killed
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

import cloudpickle  # noqa: E402, F401
import numpy  # noqa: E402, F401, ICN001
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.distributed  # noqa: E402

from dltutorial import machine  # noqa: E402, F401
from dltutorial.launch import process_group  # noqa: E402, F401

gc.collect()
gc.freeze()  # keeps the collector from touching, and so copying, the pages that all ranks share
