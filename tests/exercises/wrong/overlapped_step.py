"""Wrong answers to chapter 11's first exercise, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def all_reduce_s(n_bytes, gpus, cluster):
    if gpus == 1:
        return 0.0
    inside = gpus <= cluster["gpus_per_node"]
    rate = 1e9 * (cluster["intra_gbyte_per_s"] if inside else cluster["node_gbit_per_s"] / 8)
    return 2 * (gpus - 1) / gpus * n_bytes / rate + 2 * (gpus - 1) * cluster["hop_s"]

def step_s(samples, gpus, job, cluster):
    compute_s, end_s = samples * job["sample_s"], 0.0
    for n_bytes, ready in job["buckets"]:
        full_s = compute_s * (1 / 3 + 2 / 3 * ready)
        end_s = max(full_s, end_s) + all_reduce_s(n_bytes, gpus, cluster)
    return max(compute_s, end_s)
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


_RATE = 'cluster["intra_gbyte_per_s"] if inside else cluster["node_gbit_per_s"] / 8'
WRONG = [
    ("overlap forgotten", _with("compute_s * (1 / 3 + 2 / 3 * ready)", "compute_s"), "as soon as its bucket is full"),
    ("all buckets at once", _with("max(full_s, end_s) +", "full_s +"), None),
    ("buckets do not queue",
     _with("end_s = max(full_s, end_s) + all_reduce_s(n_bytes, gpus, cluster)",
           "end_s = max(end_s, full_s + all_reduce_s(n_bytes, gpus, cluster))"), "run at the same time"),
    ("perfect overlap", _with("max(full_s, end_s) +", "end_s +"), "starts at time 0"),
    ("forward pass forgotten", _with("(1 / 3 + 2 / 3 * ready)", "ready"), "begins after one third"),
    ("forward and backward swapped", _with("(1 / 3 + 2 / 3 * ready)", "(2 / 3 + ready / 3)"), "takes two thirds"),
    ("once round the ring", _with("return 2 * (gpus - 1) / gpus", "return (gpus - 1) / gpus"),
     "only half of the bytes"),
    ("2 n instead of 2 (p - 1) / p n", _with("2 * (gpus - 1) / gpus * n_bytes", "2 * n_bytes"), "twice the bytes"),
    ("n bytes", _with("2 * (gpus - 1) / gpus * n_bytes", "n_bytes"), "the bytes once"),
    ("bits taken for bytes", _with('["node_gbit_per_s"] / 8', '["node_gbit_per_s"]'), "in bits"),
    ("latency forgotten", _with(' + 2 * (gpus - 1) * cluster["hop_s"]', ""), "even for few bytes"),
    ("latency once", _with('2 * (gpus - 1) * cluster["hop_s"]', 'cluster["hop_s"]'), "not one hop"),
    ("hops of one turn", _with('+ 2 * (gpus - 1) * cluster["hop_s"]', '+ (gpus - 1) * cluster["hop_s"]'),
     "around the ring twice"),
    ("a way out for every GPU", _with('["node_gbit_per_s"] / 8', '["node_gbit_per_s"] / 8 * cluster["gpus_per_node"]'),
     "Do not multiply"),
    ("the way out divided among the GPUs",
     _with('["node_gbit_per_s"] / 8', '["node_gbit_per_s"] / 8 / cluster["gpus_per_node"]'), "Do not divide"),
    ("always the network", _with(_RATE, 'cluster["node_gbit_per_s"] / 8'), "Inside one node"),
    ("always the links inside", _with(_RATE, 'cluster["intra_gbyte_per_s"]'), "With more than one node"),
    ("samples forgotten", _with('samples * job["sample_s"]', 'job["sample_s"]'), "Each sample"),
    ("the exposed part alone", _with("return max(compute_s, end_s)", "return max(compute_s, end_s) - compute_s"), None),
    ("computing not counted at the end", _with("return max(compute_s, end_s)", "return end_s"), None),
    ("milliseconds", _with("return max(compute_s, end_s)", "return 1e3 * max(compute_s, end_s)"), None),
    ("nothing returned", _with("return max(compute_s, end_s)", "max(compute_s, end_s)"), "return missing"),
]  # fmt: skip
