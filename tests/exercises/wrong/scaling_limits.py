"""Wrong answers to chapter 11's second exercise, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def ring_s(n_bytes, gpus, cluster):
    if gpus == 1:
        return 0.0
    inside = gpus <= cluster["gpus_per_node"]
    rate = 1e9 * (cluster["intra_gbyte_per_s"] if inside else cluster["node_gbit_per_s"] / 8)
    return 2 * (gpus - 1) / gpus * n_bytes / rate + 2 * (gpus - 1) * cluster["hop_s"]

def whole_s(samples, gpus, job, cluster):
    compute_s, end_s = samples * job["sample_s"], 0.0
    for n_bytes, ready in job["buckets"]:
        full_s = compute_s * (1 / 3 + 2 / 3 * ready)
        end_s = max(full_s, end_s) + ring_s(n_bytes, gpus, cluster)
    return max(compute_s, end_s)

def scaling_limits(batch, job, cluster, goal, most):
    crossover, largest, gpus = None, 1, 1
    while gpus <= most:
        compute_s = batch / gpus * job["sample_s"]
        sent_s = sum(ring_s(n, gpus, cluster) for n, _ in job["buckets"])
        if crossover is None and sent_s > compute_s:
            crossover = gpus
        efficiency = batch * job["sample_s"] / (gpus * whole_s(batch / gpus, gpus, job, cluster))
        if efficiency >= goal:
            largest = gpus
        gpus *= 2
    return crossover, largest
"""
_EFFICIENCY = 'batch * job["sample_s"] / (gpus * whole_s(batch / gpus, gpus, job, cluster))'


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("computing not divided",
     _with('compute_s = batch / gpus * job["sample_s"]', 'compute_s = batch * job["sample_s"]'), "computes 1/P"),
    ("only the exposed communication",
     _with('sent_s = sum(ring_s(n, gpus, cluster) for n, _ in job["buckets"])',
           "sent_s = whole_s(batch / gpus, gpus, job, cluster) - compute_s"), "only the exposed part"),
    ("speed-up instead of efficiency",
     _with("(gpus * whole_s(batch / gpus, gpus, job, cluster))", "whole_s(batch / gpus, gpus, job, cluster)"),
     "divided by the number of GPUs"),
    ("weak instead of strong", _with(_EFFICIENCY, 'batch * job["sample_s"] / whole_s(batch, gpus, job, cluster)'),
     "is fixed"),
    ("the fewest", _with("            largest = gpus\n", "            largest = min(largest, gpus)\n"),
     "not the smallest"),
    ("the first that misses", _with("            largest = gpus\n", "            largest = 2 * gpus\n"),
     "does not reach the goal"),
    ("the last before the crossover", _with("crossover = gpus\n", "crossover = gpus // 2\n"), "is the smallest number"),
    ("the last crossover", _with("crossover is None and sent_s", "sent_s"), "For the crossover, compare"),
    ("without overlap", _with("compute_s * (1 / 3 + 2 / 3 * ready)", "compute_s"), "step with overlap"),
    ("swapped", _with("return crossover, largest", "return largest, crossover"), "crossover first"),
    ("one number", _with("return crossover, largest", "return largest"), "two values"),
    ("zero where there is none", _with("return crossover, largest", "return crossover or 0, largest"), None),
    ("one GPU more each time", _with("gpus *= 2", "gpus += 1"), None),
]  # fmt: skip
