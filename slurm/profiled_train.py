"""Train under torch's profiler: ``python -m slurm.profiled_train TRACE OPTION…``, in the course's folder.

``profile.sbatch`` runs this program if Nsight Systems is not installed. The options are those of ``dltutorial train``.
The name of the trace ends in ``.json`` or ``.json.gz``. The profiler skips five steps, because the first steps are
slower, and records the next five. The trace shows these parts of a step: load, to device, forward, backward, optimizer.
"""

import sys

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile, schedule

from dltutorial.cli import main

if __name__ == "__main__":
    trace, *options = sys.argv[1:]
    with profile(
        schedule=schedule(wait=0, warmup=5, active=5, repeat=1),
        on_trace_ready=lambda recording: recording.export_chrome_trace(trace),
    ) as recording:
        # After each step of the optimizer, the profiler counts one training step.
        register_optimizer_step_post_hook(lambda *arguments: recording.step())
        status = main(["train", *options])
    sys.exit(status)
