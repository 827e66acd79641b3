"""Train under torch's profiler: ``python -m slurm.profiled_train TRACE OPTION…``, in the course's folder.

``profile.sbatch`` runs it if ``nsys`` is not installed. The options are those of ``dltutorial train``. The name of the
trace ends in ``.json`` or ``.json.gz``. Its ranges are load, to device, forward, backward and optimizer.
"""

import sys

from torch.profiler import profile

from dltutorial.cli import main
from dltutorial.profile import ranges

if __name__ == "__main__":
    trace, *options = sys.argv[1:]
    with ranges.enabled(), profile() as recording:
        status = main(["train", *options])
    recording.export_chrome_trace(trace)
    sys.exit(status)
