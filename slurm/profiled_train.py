"""Train under torch's profiler: ``python -m slurm.profiled_train TRACE OPTION…``, in the course's folder.

``profile.sbatch`` runs it if ``nsys`` is not installed. The options are those of ``dltutorial train``. The name of the
trace ends in ``.json`` or ``.json.gz``. The profiler skips five updates, because the first ones are slower, and records
the next five. The ranges in a step are load, to device, forward, backward and optimizer.
"""

import sys

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile, schedule

from dltutorial.cli import main
from dltutorial.profile import ranges

if __name__ == "__main__":
    trace, *options = sys.argv[1:]
    with (
        ranges.enabled(),
        profile(
            schedule=schedule(wait=0, warmup=5, active=5, repeat=1),
            on_trace_ready=lambda recording: recording.export_chrome_trace(trace),
        ) as recording,
    ):
        register_optimizer_step_post_hook(lambda *arguments: recording.step())
        status = main(["train", *options])
    sys.exit(status)
