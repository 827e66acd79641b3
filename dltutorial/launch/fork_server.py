"""What multiprocessing's fork server does before it makes ranks: it imports this module, as ``local.warm`` has asked.

It loads what every rank needs, and computes nothing, so no thread is left that a fork would lose. On Linux it also
adopts what ranks leave behind, and at its own end it ends all below it. In any other process (without the variable
``worker.SOCKETS``) importing this does nothing.
"""

import atexit
import contextlib
import gc
import importlib
import os
import shutil
import signal
import warnings

import psutil

from dltutorial.launch import worker

# torch._dynamo is imported by the first optimizer: seconds for each rank if it is not here.
NEEDED = ("numpy", "cloudpickle", "torch", "torch.distributed", "torch._dynamo", "dltutorial.launch.process_group")


def keep_to_itself(sockets: str) -> None:
    """Have no part in the caller's terminal and output; leave no file when the caller is killed."""
    os.setsid()  # Ctrl-C is for the caller, which ends the ranks
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # whoever reads the caller's output must not wait for this process, too
        os.dup2(nothing, number)
    os.close(nothing)
    signal.signal(worker.WHERE_SIGNAL, signal.SIG_IGN)  # until a rank is able to answer
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    atexit.register(end_children)
    worker.control_process(worker.PR_SET_CHILD_SUBREAPER, 1)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected")  # the end of one that was adopted


def end_children() -> None:
    """Kill all that is below this process; what a rank has started may have left the rank's process group."""
    with contextlib.suppress(ChildProcessError):  # until there is none
        while True:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            os.wait()


def preload() -> None:
    """Import what every rank needs."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no C++ frames when another rank is gone
    for name in NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that all ranks share


if worker.SOCKETS in os.environ:
    keep_to_itself(os.environ[worker.SOCKETS])
    preload()
