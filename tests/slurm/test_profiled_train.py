"""Training under torch's profiler, as ``profile.sbatch`` does it if ``nsys`` is not installed."""

import subprocess
import sys

from folders import ROOT

from dltutorial.profile import trace


def test_the_trace_has_five_steps_with_their_ranges(tmp_path):
    file = tmp_path / "profile.json.gz"
    tiny = ["--preset", "smoke", "--dim", "32", "--depth", "1", "--steps", "12", "--eval-every", "0"]
    command = [sys.executable, "-m", "slurm.profiled_train", str(file), "--name", "profiled", *tiny]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert len(trace.read(file).steps) == 5
