"""Wrong answers to the exercise of chapter 02, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def bottleneck(account):
    if account.device_s >= 0.75 * account.step_s:
        return "device"
    parts = {
        "loading": account.wait_s,
        "synchronisation": account.synchronise_s,
        "launches": account.launch_s,
    }
    return max(parts, key=parts.get)
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


_RULE = '    if account.device_s >= 0.75 * account.step_s:\n        return "device"\n'

WRONG = [
    ("the longest part of the host, whatever the device does", _with(_RULE, ""), "Look at device_s first"),
    (
        "an idle device means launches",
        _with("    return max(parts, key=parts.get)", '    return "launches"'),
        "The host waits for its batch",
    ),
    (
        "any wait for data is to blame",
        RIGHT.replace("    if", '    if account.wait_s > 0.2 * account.step_s:\n        return "loading"\n    if'),
        "still has a queue",
    ),
    (
        "any synchronising call is to blame",
        RIGHT.replace("    if", '    if account.n_synchronise >= 1:\n        return "synchronisation"\n    if'),
        "The host waits for its batch",
    ),
    (
        "many kernels are to blame",
        RIGHT.replace("    if", '    if account.n_calls > 300:\n        return "launches"\n    if'),
        None,
    ),
    ("a device busy for half of the time", _with("0.75", "0.5"), "not for three quarters"),
    (
        "the largest of all four, the device among them",
        _with("0.75 * account.step_s", "max(account.wait_s, account.synchronise_s, account.launch_s)"),
        "Compare the host's three parts",
    ),
    ("a device that is never idle", _with("0.75", "0.999"), None),
    ("the device's time against the host's work", _with("account.step_s:", "account.launch_s:"), None),
    ("loading on another thread left out", _with("account.wait_s", "account.read_s"), "batch"),
    ("the shortest part", _with("max(parts", "min(parts"), "batch"),
    ("the share, not the name", _with("max(parts, key=parts.get)", "max(parts.values())"), "four names"),
    ("the detective's word", _with('return "device"', 'return "compute-bound"'), "four names"),
    (
        "the three traces by heart",
        'def bottleneck(account):\n    return "launches" if account.n_calls > 500 else "loading"\n',
        None,
    ),
    ("nothing returned", _with("    return max(parts, key=parts.get)", "    max(parts, key=parts.get)"), None),
]
