"""Print one row for ``dltutorial.scaling.fit``: ``python -m slurm.scaling_row RUN_FOLDER RANKS``.

Input: the folder of a training run, and the number of its ranks. Output: the row ``ranks,samples,step_s`` with the
samples of one rank in a step, and the median seconds of a step. The first ten steps are slower and do not count.
"""

import json
import statistics
import sys
from pathlib import Path

if __name__ == "__main__":
    run, n_ranks = Path(sys.argv[1]), int(sys.argv[2])
    global_batch_size = json.loads((run / "config.json").read_text())["global_batch_size"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [record["samples_per_s"] for record in records if "loss" in record and record["step"] > 10]
    step_s = global_batch_size / statistics.median(rates)
    print(f"{n_ranks},{global_batch_size // n_ranks},{step_s:.6f}")
